"""A Redis Cluster of three masters that split the 16,384 slots evenly.

The join is done by hand (slots, epochs, MEET) because it is faster than the command line tool and
because no wheel ships that tool. The remaining two seconds are the server's own: a master that
has just started does not serve earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from .fleet import Fleet
from .process import NotReady, Port, eventually
from .redis import RedisServer, Valkey
from .resp import call_text

SLOTS = 16_384
MASTERS = 3


class RedisCluster(Fleet):
    """`flavour` is any server of redis.py; `nodes` are its masters in slot order."""

    def __init__(self, flavour: type[RedisServer] = Valkey, *, durable: bool = False) -> None:
        self._bus = [Port() for _ in range(MASTERS)]
        self.nodes = [
            flavour(
                durable=durable,
                args=[
                    *("--cluster-enabled", "yes"),
                    *("--cluster-port", str(bus.number)),
                    *("--cluster-node-timeout", "1000"),
                ],
            )
            for bus in self._bus
        ]

    @property
    def members(self) -> Sequence[RedisServer]:
        return self.nodes

    @property
    def url_of_all(self) -> str:
        """With every node as a seed, in the order of `nodes`."""
        hosts = ",".join(f"{node.host}:{node.port}" for node in self.nodes)
        return f"redis+cluster://{hosts}"

    def form(self) -> None:
        for index, node in enumerate(self.nodes):
            first, last = index * SLOTS // MASTERS, (index + 1) * SLOTS // MASTERS - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            # Equal epochs would be settled by an exchange of messages; distinct ones need none.
            node.call("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
        for node in self.nodes[1:]:
            self.nodes[0].call(
                "CLUSTER", "MEET", node.host, node.port, self._bus[self.nodes.index(node)].number
            )
        self.wait_healthy()

    def wait_healthy(self) -> None:
        for node in self.nodes:
            eventually(partial(_check, node), within=20, what="the cluster")

    def wait_agreed(self) -> None:
        """Until all nodes tell the same owner of each slot, and the same config epochs. A slot that
        is moved before that can be claimed back by an owner whose epoch was not known yet, and the
        keys in it are dropped."""

        def agreed() -> None:
            views = [_view(node) for node in self.nodes]
            if any(view != views[0] for view in views):
                raise NotReady(str(views))

        eventually(agreed, within=20, what="the nodes' agreement")

    def node_of(self, key: str) -> RedisServer:
        """The master that owns the key."""
        slot = self.nodes[0].call("CLUSTER", "KEYSLOT", key)
        assert isinstance(slot, int)
        return next(n for i, n in enumerate(self.nodes) if slot < (i + 1) * SLOTS // MASTERS)

    @contextmanager
    def moving(self, key: str, source: RedisServer, target: RedisServer) -> Iterator[None]:
        """Within the block, the slot of a key is on its way; afterwards it is the target's. Its
        keys are to be moved in the block."""
        slot = int(str(source.call("CLUSTER", "KEYSLOT", key)))
        ids = {node.port: str(node.call("CLUSTER", "MYID")) for node in self.nodes}
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
        yield
        for node in (target, source, *self.nodes):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])

    def close(self) -> None:
        super().close()
        for bus in self._bus:
            bus.release()


def _check(node: RedisServer) -> None:
    info = call_text(node.port, "CLUSTER", "INFO").split()
    if "cluster_state:ok" not in info or f"cluster_known_nodes:{MASTERS}" not in info:
        raise NotReady(" ".join(info[:6]))


def _view(node: RedisServer) -> dict[str, list[str]]:
    """What a node knows: the config epoch and the slots of each. The fields of a line are id,
    address, flags, master, ping, pong, epoch, state and slots."""
    lines = call_text(node.port, "CLUSTER", "NODES").splitlines()
    fields = [line.split() for line in lines]
    return {each[0]: [each[6], *each[8:]] for each in fields}
