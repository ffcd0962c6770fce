"""A crowd gets its share and no more, whatever protocol it speaks."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from penstock.service.connections import ClientGroup, ConnectionBounds
from tests.servers import NotReady, eventually

from .lines import Lines


@contextlib.contextmanager
def client(server: Lines) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), 20) as line:
        yield line


def asked(line: socket.socket, text: bytes) -> bytes:
    """One line, and the line that comes back."""
    line.sendall(text + b"\n")
    return read_line(line)


def read_line(line: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n"):
        data = line.recv(1)
        if not data:
            return received
        received += data
    return received[:-1]


def wait_until(server: Lines, what: str) -> None:
    """Until an expression about the server holds."""

    def holds() -> None:
        if not server.inside(lambda: eval(what, {"server": server.server})):
            raise NotReady(what)

    eventually(holds, within=60, what=what)


def test_one_request_does_not_wait_for_those_of_a_client_that_sends_without_end() -> None:
    """Both are there when the loop looks; the one line is answered within a slice of the others."""
    with Lines() as server, client(server) as greedy, client(server) as modest:
        assert asked(greedy, b"echo hello") == asked(modest, b"echo hello") == b"echo hello"
        go_on = server.hold_up()
        greedy.sendall(b"echo greedy\n" * 2_000)
        modest.sendall(b"echo modest\n")
        go_on.set()
        assert read_line(modest) == b"echo modest"
        wait_until(server, "server.served.count(b'greedy') == 2000")
        assert server.server.served.index(b"modest") < 2 + 3 * ConnectionBounds().slice_units


def test_clients_that_send_without_end_take_turns() -> None:
    """A slice each, so none has to wait for all of another's."""
    with Lines() as server, client(server) as one, client(server) as two:
        assert asked(one, b"echo hello") == asked(two, b"echo hello") == b"echo hello"
        go_on = server.hold_up()
        for name, line in ((b"one", one), (b"two", two)):
            line.sendall(b"echo %b\n" % name * 1_000)
        go_on.set()
        wait_until(server, "len(server.served) == 2002")
        served = server.server.served[2:]
        runs = [1]
        for before, now in pairwise(served):
            runs.append(runs[-1] + 1 if now == before else 1)
        # The first bytes of the one may have come before those of the other.
        assert max(runs[200:1_800]) <= 2 * ConnectionBounds().slice_units


def test_the_loop_does_other_things_between_slices() -> None:
    """Whoever else lives on it, such as the gRPC server, is not kept waiting by a crowd."""
    with Lines() as server, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(client(server)) for _ in range(20)]
        seen: list[int] = []

        def look() -> None:
            seen.append(len(server.server.served))
            if seen[-1] < 20 * 1_000:
                server.loop.call_soon(look)

        go_on = server.hold_up()
        for line in lines:
            line.sendall(b"echo x\n" * 1_000)
        server.loop.call_soon_threadsafe(look)
        go_on.set()
        wait_until(server, "len(server.served) == 20_000")
        steps = [b - a for a, b in pairwise(seen)]
        assert max(steps) <= 2 * ConnectionBounds().turn_units


class Flood:
    """Clients that send and do not read, until the end of the test."""

    def __init__(self, server: Lines, count: int, data: bytes, first: bytes = b"") -> None:
        self._lines = [
            socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(count)
        ]
        self._over = threading.Event()
        for line in self._lines:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            line.sendall(first)
        self._thread = threading.Thread(target=self._send, args=(data,))

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(20)
        for line in self._lines:
            line.close()

    def _send(self, data: bytes) -> None:
        lines = list(self._lines)
        for line in lines:
            line.setblocking(False)
        while lines and not self._over.wait(0.001):
            lines = [line for line in lines if _send_some(line, data)]


def _send_some(line: socket.socket, data: bytes) -> bool:
    """Returns whether the other side still takes anything."""
    try:
        line.send(data)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


SMALL = ConnectionBounds(
    buffered_bytes=400_000,
    stranger_buffered_bytes=200_000,
    system_bytes=32_768,
    unread_bytes=16_384,
    drain_s=1.0,
)
# Of what is read at once, and of what is sent.
ONE_MORE = 200_001


FLOODS = {
    "requests without end": b"echo x\n" * 999,
    "replies that nobody takes": b"long 200000\n",
    "last replies that nobody takes": b"last 200000\n",
    "requests that are never whole": b"y" * 9_999,
    "requests behind one that waits": b"wait\n" * 999,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_what_is_held_for_all_together_is_bounded_at_every_moment(flood: bytes) -> None:
    """At most one read or reply more than the bound, and others are served."""
    with Lines(SMALL) as server, Flood(server, 60, flood), client(server) as other:
        for _ in range(100):
            assert asked(other, b"echo hello") == b"echo hello"
        wait_until(server, "server.known.peak > 200_000")
        for _ in range(100):
            assert asked(other, b"echo hello") == b"echo hello"
        assert server.server.known.peak <= SMALL.buffered_bytes + ONE_MORE


def test_what_is_held_for_one_connection_is_bounded() -> None:
    """While it waits for an answer nothing more is read than the bound, and one read beyond it;
    afterwards it is read from again, and all is answered in order."""
    with Lines(SMALL) as server, client(server) as line:
        line.sendall(b"wait\n")
        wait_until(server, "server.waiting")
        sender = threading.Thread(target=line.sendall, args=(b"echo x\n" * 100_000,))
        sender.start()
        wait_until(server, f"server.known.buffered > {SMALL.unread_bytes}")
        held = server.inside(lambda: server.server.known.buffered)
        assert held <= SMALL.unread_bytes + ONE_MORE
        server.inside(lambda: server.server.waiting[0].answered(b"waited\n"))
        received = b""
        while received.count(b"\n") < 100_001:
            received += line.recv(2**20)
        sender.join()
        assert received == b"waited\n" + b"echo x\n" * 100_000
        wait_until(server, "server.known.buffered == 0")


def test_memory_is_given_back_when_clients_leave() -> None:
    """Whatever state they were in."""
    with Lines(SMALL) as server:
        for data in (b"echo x\n" * 9_999, b"long 99999\n" * 9, b"y" * 9_999, b"wait\n" * 9_999):
            server.server.known.peak = 0
            with Flood(server, 5, data):
                wait_until(server, "server.known.peak > 0")
            wait_until(server, "server.answer_all() == 0 == server.open_connections")
            assert server.inside(lambda: server.server.known.buffered) == 0


STRANGERS = ConnectionBounds(connections=8, stranger_connections=4, drain_s=1.0)


def test_strangers_have_places_of_their_own_and_the_oldest_makes_room() -> None:
    """A newcomer is let in, and so can show who it is; those who did are never displaced."""
    with Lines(STRANGERS, asks_token=True) as server, contextlib.ExitStack() as stack:
        known = [stack.enter_context(client(server)) for _ in range(3)]
        for line in known:
            assert asked(line, b"known") == b"known"
        strangers = [stack.enter_context(client(server)) for _ in range(7)]
        for line in strangers:
            line.sendall(b"echo hello\n")
        assert read_line(strangers[-1]) == b"echo hello"
        newcomer = stack.enter_context(client(server))
        assert asked(newcomer, b"known") == b"known"
        for line in (*known, newcomer):
            assert asked(line, b"echo still here") == b"echo still here"
        wait_until(server, "len(server.strangers.connections) <= 4")
        for line in strangers[:3]:
            with contextlib.suppress(ConnectionResetError):
                while line.recv(100):
                    pass
        assert server.inside(lambda: server.server.shed) >= 3


def test_strangers_do_not_use_up_the_work_of_others() -> None:
    """Many of them ask without end; one that is known gets its answers in between."""
    with Lines(ConnectionBounds(drain_s=1.0), asks_token=True) as server, client(server) as known:
        assert asked(known, b"known") == b"known"
        with Flood(server, 100, b"echo stranger\n" * 20):
            wait_until(server, "server.served.count(b'stranger') > 1000")
            positions = []
            for _ in range(50):
                before = len(server.server.served)
                assert asked(known, b"echo known") == b"echo known"
                positions.append(len(server.server.served) - before)
        # So many strangers were served while the known one waited, its way here and back included.
        assert sorted(positions)[25] < 5 * ConnectionBounds().stranger_turn_units


@pytest.mark.parametrize("word", [b"echo stranger", b"wait"])
def test_strangers_leave_most_of_the_loop_to_others(word: bytes) -> None:
    """The loop comes round without them more often than with them, however many are queued: what
    lives on it, such as the gRPC server, goes on with each round."""
    with (
        Lines(ConnectionBounds(drain_s=1.0), asks_token=True) as server,
        contextlib.ExitStack() as stack,
    ):
        lines = [stack.enter_context(client(server)) for _ in range(50)]
        for line in lines:
            assert asked(line, b"echo hello") == b"echo hello"
        rounds: list[int] = []

        def look() -> None:
            server.server.answer_all()
            rounds.append(len(server.server.served))
            if rounds[-1] < 50 + 50 * 100:
                server.loop.call_soon(look)

        go_on = server.hold_up()
        for line in lines:
            line.sendall((word + b"\n") * 100)
        server.loop.call_soon_threadsafe(look)
        go_on.set()
        wait_until(server, "len(server.served) == 50 + 50 * 100")
        without = sum(now == before for before, now in pairwise(rounds))
        assert without > len(rounds) / 2


def test_newcomers_that_show_who_they_are_use_up_nothing_of_strangers() -> None:
    """Though they arrive as strangers: however many there are, each is served where it arrives."""
    bounds = ConnectionBounds(stranger_turn_units=2, drain_s=1.0)
    with Lines(bounds, asks_token=True) as server, contextlib.ExitStack() as stack:
        for _ in range(20):
            assert asked(stack.enter_context(client(server)), b"known") == b"known"
        assert server.inside(lambda: server.server.strangers.units) == 2


def test_a_client_that_has_said_all_it_wants_gets_all_its_answers() -> None:
    """Though there are more of them than one slice."""
    with Lines() as server, client(server) as line:
        line.sendall(b"echo x\n" * 1_000)
        line.shutdown(socket.SHUT_WR)
        received = b""
        while data := line.recv(65_536):
            received += data
        assert received == b"echo x\n" * 1_000


def test_a_connection_that_fails_harms_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ended; those behind it in the queue are served."""
    from .lines import LineConnection

    reply = LineConnection._reply

    def fail(self: LineConnection, line: bytes) -> bytes:
        if line == b"echo fail":
            raise ZeroDivisionError
        return reply(self, line)

    monkeypatch.setattr(LineConnection, "_reply", fail)
    with Lines() as server, client(server) as bad, client(server) as good:
        go_on = server.hold_up()
        bad.sendall(b"echo fail\n" * 1_000)
        good.sendall(b"echo good\n" * 1_000)
        go_on.set()
        wait_until(server, "server.served.count(b'good') == 1000")
        with contextlib.suppress(ConnectionResetError):
            assert bad.recv(100) == b""


class TimedLoop:
    """Takes a turn at once, and notes how long the next one is put off."""

    def __init__(self) -> None:
        self.rests: list[float] = []

    def call_soon(self, turn: Any) -> None:
        turn()

    def call_later(self, delay_s: float, turn: Any) -> None:
        self.rests.append(delay_s)


@pytest.mark.parametrize("held_up_s", [0.1, 60.0])
def test_a_turn_that_was_held_up_does_not_put_off_the_next_for_long(held_up_s: float) -> None:
    """A stopped process is not the work of strangers: probes are among those who wait."""
    bounds = {"connections": 4, "buffered_bytes": 1_000, "slice_units": 1, "turn_units": 16}
    group, loop = ClientGroup(**bounds, loop_share=0.25), TimedLoop()
    group.live_on(loop)  # type: ignore[arg-type]

    class Client:
        def serve_queued(self) -> int:
            group.answering_s += held_up_s
            return 1

    group.enqueue(Client(), group.queue)  # type: ignore[arg-type]
    (rest_s,) = loop.rests
    assert min(3 * held_up_s, 1.0) <= rest_s <= 1.0
