"""Several flows side by side: they go in step, and each step's requests are served together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core.flow import Flow
from .requests import CasFlow, Step

__all__ = ["abreast"]


def abreast(
    flows: Sequence[CasFlow], failed: Sequence[Callable[[BaseException], None]]
) -> Flow[list[Step], None]:
    """Yields lists of steps and is sent, for each, its answer or the exception it met.

    An exception of the server side as a whole is everybody's. A flow that raises leaves the row,
    and `failed` of its place is told why.
    """
    pending: dict[int, Step] = {}

    def resume(place: int, advance: Callable[[], Step]) -> None:
        try:
            pending[place] = advance()
        except StopIteration:
            pending.pop(place, None)
        except Exception as error:
            pending.pop(place, None)
            failed[place](error)

    for place, flow in enumerate(flows):
        resume(place, flow.__next__)
    while pending:
        places = list(pending)
        try:
            answers: list[Any] = yield [pending[place] for place in places]
        except Exception as error:
            answers = [error] * len(places)
        for place, answer in zip(places, answers, strict=True):
            if isinstance(answer, BaseException):
                resume(place, lambda flow=flows[place], error=answer: flow.throw(error))  # type: ignore[misc]
            else:
                resume(place, lambda flow=flows[place], answer=answer: flow.send(answer))  # type: ignore[misc]
