"""Django: limits by settings and decorators, for sync and async views and classes of views.

    MIDDLEWARE = [..., "penstock.integrations.django.LimitMiddleware"]
    PENSTOCK = {"LIMITS": ["100/minute"], "STORE": "redis://localhost:6379"}

In `INSTALLED_APPS`, `"penstock.integrations.django"` adds a system check of the settings and the
command `manage.py penstock`.
"""

from __future__ import annotations

from ._views import LimitMiddleware, by_user, rate_limited

__all__ = ["LimitMiddleware", "by_user", "rate_limited"]
