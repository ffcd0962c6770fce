"""How a connection to a backend fails: one exception for all stores.

It never leaves a store: there it becomes `store_unavailable`, with a word on what was charged.
"""

from __future__ import annotations

__all__ = ["ConnectionFailedError"]


class ConnectionFailedError(Exception):
    """A backend could not be asked, or its answer was not heard.

    `may_have_run` is False only when it is certain that the request had no effect and will have
    none; `again` when another attempt within the same call may fare better.
    """

    def __init__(self, text: str, *, may_have_run: bool, again: bool = False) -> None:
        super().__init__(text)
        self.may_have_run = may_have_run
        self.again = again
