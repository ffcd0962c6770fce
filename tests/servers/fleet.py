"""Several servers under one handle: a verb on the fleet is that verb on every member."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TypeVar

from .process import HOST, Server

AnyFleet = TypeVar("AnyFleet", bound="Fleet")


class Fleet(ABC):
    """Address and pid are the first member's; hurt one server through the member itself."""

    host = HOST

    @property
    @abstractmethod
    def members(self) -> Sequence[Server]:
        """Every server, in the order in which they start."""

    @abstractmethod
    def form(self) -> None:
        """Introduce the members to each other, once, and wait until they agree."""

    @abstractmethod
    def wait_healthy(self) -> None:
        """Return when the whole fleet serves."""

    @property
    def port(self) -> int:
        return self.members[0].port

    @property
    def url(self) -> str:
        return self.members[0].url

    @property
    def pid(self) -> int:
        return self.members[0].pid

    def kill(self) -> None:
        for member in self._running():
            member.kill()

    def pause(self) -> None:
        for member in self._running():
            member.pause()

    def resume(self) -> None:
        for member in self._running():
            member.resume()

    def stop(self) -> None:
        for member in reversed(self.members):
            member.stop()

    def restart(self) -> None:
        for member in self.members:
            member.restart()
        self.wait_healthy()

    def close(self) -> None:
        for member in reversed(self.members):
            member.close()

    def __enter__(self: AnyFleet) -> AnyFleet:
        with ExitStack() as undo:
            undo.callback(self.close)
            for member in self.members:
                member.start()
            self.form()
            undo.pop_all()
        return self

    def _running(self) -> list[Server]:
        return [member for member in self.members if member.running]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
