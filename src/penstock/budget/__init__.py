"""Token budgets: limits on what is known to have been used only afterwards."""

from __future__ import annotations

from ._token_budget import TokenBudget, token_budget

__all__ = ["TokenBudget", "token_budget"]
