"""A master, its replica, and three sentinels tuned to notice within a third of a second.

Production sentinels say hello every 2 s and look at INFO every 10 s, so a set-up with their
defaults needs 10 s to form and 40 s to take an old master back. `SENTINEL DEBUG` shortens the
periods; it exists in Valkey and in Redis 7 or later.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .fleet import Fleet
from .process import NotReady, Server, ServerError, eventually
from .redis import RedisServer, Valkey
from .resp import Reply, call, call_text

MASTER_NAME = "penstock"
QUORUM = 2
# During a failover the leader looks at its candidate once a second, whatever these say. Hence the
# floors: a candidate not looked at for 3 info periods is no candidate, and a master not announced
# within 4 publish periods is turned back into a replica by the other sentinels.
PERIODS_MS = {"ask-period": 100, "info-period": 500, "publish-period": 500}
# Three sentinels that notice at once may each vote for themselves, and the next try is seconds
# away. One that notices late has its vote free for the first of the others.
DOWN_AFTER_MS = (300, 400, 1500)


class SentinelNode(Server):
    """One sentinel; it rewrites its own configuration file as it learns."""

    name = "sentinel"
    scheme = "redis"

    def __init__(self, binary: Path, master: RedisServer, down_after_ms: int) -> None:
        super().__init__()
        self._binary = binary
        self._master = master
        self._down_after_ms = down_after_ms

    def prepare(self) -> None:
        (self.data_dir / "sentinel.conf").write_text(
            f"bind {self.host}\nport {self.port}\ndir {self.data_dir}\n"
            f"sentinel monitor {MASTER_NAME} {self.host} {self._master.port} {QUORUM}\n"
            f"sentinel down-after-milliseconds {MASTER_NAME} {self._down_after_ms}\n"
            f"sentinel failover-timeout {MASTER_NAME} 1500\n"
        )

    def command(self) -> list[str]:
        return [str(self._binary), str(self.data_dir / "sentinel.conf"), "--sentinel"]

    def ping(self) -> None:
        # Not kept in the configuration file, hence told again after each start.
        self.call("SENTINEL", "DEBUG", *(word for pair in PERIODS_MS.items() for word in pair))

    def call(self, *words: str | int) -> Reply:
        return call(self.port, *words)

    def facts(self) -> dict[str, str]:
        """What this sentinel holds true of the master."""
        reply = self.call("SENTINEL", "MASTER", MASTER_NAME)
        assert isinstance(reply, list)
        words = [str(word) for word in reply]
        return dict(zip(words[::2], words[1::2], strict=True))


class RedisSentinel(Fleet):
    """`servers` are the two data nodes; which of them is the master changes with each failover."""

    master_name = MASTER_NAME

    def __init__(self, flavour: type[RedisServer] = Valkey, *, durable: bool = False) -> None:
        first = flavour(durable=durable, args=["--repl-diskless-sync-delay", "0"])
        second = flavour(
            durable=durable,
            args=[
                *("--repl-diskless-sync-delay", "0"),
                *("--replicaof", f"{first.host} {first.port}"),
            ],
        )
        self.servers = [first, second]
        self.sentinels = [SentinelNode(flavour.locate(), first, ms) for ms in DOWN_AFTER_MS]

    @property
    def members(self) -> Sequence[Server]:
        return [*self.servers, *self.sentinels]

    @property
    def port(self) -> int:
        return self.sentinels[0].port

    @property
    def url(self) -> str:
        return f"redis+sentinel://{self.host}:{self.port}/{MASTER_NAME}"

    @property
    def url_of_all(self) -> str:
        """The same, with every sentinel in it."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis+sentinel://{hosts}/{MASTER_NAME}"

    @property
    def pid(self) -> int:
        return self.sentinels[0].pid

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the sentinels listen, as client libraries want it."""
        return [(sentinel.host, sentinel.port) for sentinel in self.sentinels]

    @property
    def master(self) -> RedisServer:
        """The server that all running sentinels, and its own ROLE, call the master."""
        return eventually(self._agreed_master, within=60, what="an agreed master")

    @property
    def replica(self) -> RedisServer:
        return next(server for server in self.servers if server is not self.master)

    def form(self) -> None:
        self.wait_healthy()

    def wait_healthy(self) -> None:
        """Every sentinel knows the others and a replica whose link to the master is up."""
        eventually(self._check_healthy, within=20, what="the sentinels")

    def failover(self) -> RedisServer:
        """An orderly failover, as an operator orders it; returns the new master."""
        old = self.master
        # A sentinel may give an ordered failover up, when the replica answers late: order it again.
        for attempt in range(1, 7):
            eventually(
                lambda: self.sentinels[0].call("SENTINEL", "FAILOVER", MASTER_NAME),
                within=15,
                what="SENTINEL FAILOVER",
            )
            try:
                return self.wait_new_master(old, within=10 * attempt)
            except ServerError:
                if attempt == 6:
                    raise
        raise AssertionError("not reached")

    def crash_master(self) -> RedisServer:
        """SIGKILL the master and wait for the election; returns the new one."""
        old = self.master
        old.kill()
        return self.wait_new_master(old)

    def wait_new_master(self, old: RedisServer, *, within: float = 60) -> RedisServer:
        def other() -> RedisServer:
            if (found := self._agreed_master()) is old:
                raise NotReady("the old master is still the master")
            return found

        return eventually(other, within=within, what="a new master")

    def _agreed_master(self) -> RedisServer:
        ports = {sentinel.facts()["port"] for sentinel in self.sentinels if sentinel.running}
        if len(ports) != 1:
            raise NotReady(f"the sentinels disagree: {ports}")
        server = next(server for server in self.servers if str(server.port) in ports)
        role = server.call("ROLE")
        if not isinstance(role, list) or role[0] != "master":
            raise NotReady(f"{server.port} has the role {role!r}")
        return server

    def _check_healthy(self) -> None:
        self._agreed_master()
        for sentinel in self.sentinels:
            facts = sentinel.facts()
            if (facts["flags"], facts["num-slaves"], facts["num-other-sentinels"]) != (
                "master",
                "1",
                "2",
            ):
                raise NotReady(f"{sentinel.port} sees {facts}")
        replication = call_text(self.replica.port, "INFO", "replication")
        if "master_link_status:up" not in replication:
            raise NotReady("the replica's link to its master is down")
