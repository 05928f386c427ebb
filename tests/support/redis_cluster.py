"""A cluster of three masters, with or without replicas, put together by hand."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from math import inf
from types import TracebackType
from typing import Self

import redis

from tests.support.servers import RedisServer, TlsFiles, free_port
from tests.support.waiting import eventually

SLOTS = 16_384
NODE_TIMEOUT, LONG = 1000, 60_000
"""Milliseconds after which a silent node is taken for dead. Only a replica can take its place:
where there is none, a node that is busy or frozen for seconds shall not close the cluster."""


class ClusterNode(RedisServer):
    """One node; `id` is its name in the cluster."""

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        program: str = "redis-server",
        password: str | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        own = ["--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT)]
        # The default is 10,000 above the port, which is not always free.
        own += ["--cluster-port", str(free_port())]
        own += ["--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"]
        own += ["--masterauth", password] if password else []
        super().__init__([*own, *options], program=program, password=password, tls=tls)
        self.id = self.cli("CLUSTER", "MYID").strip()

    @property
    def bus(self) -> str:
        return self.options[self.options.index("--cluster-port") + 1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def state(self, name: str) -> str:
        """One field of CLUSTER INFO."""
        said = dict(
            line.split(":", 1) for line in self.cli("CLUSTER", "INFO").splitlines() if ":" in line
        )
        return said[name].strip()


class RedisCluster:
    """Three masters, and as many replicas as asked; `url` names the first two."""

    def __init__(
        self,
        *,
        replicas: int = 0,
        options: Sequence[str] = (),
        program: str = "redis-server",
        password: str | None = None,
    ) -> None:
        self._stack = ExitStack()
        self._password = password
        self.nodes: list[ClusterNode] = []
        self.replicas: list[ClusterNode] = []
        try:
            for at in range(3 + replicas):
                node = ClusterNode(options, program=program, password=password)
                self._stack.callback(node.stop)
                (self.nodes if at < 3 else self.replicas).append(node)
            self._join()
        except BaseException:
            self._stack.close()
            raise

    def _join(self) -> None:
        first, *others = everybody = [*self.nodes, *self.replicas]
        for at, node in enumerate(everybody, start=1):
            node.cli("CLUSTER", "SET-CONFIG-EPOCH", str(at))
        for node in others:
            first.cli("CLUSTER", "MEET", "127.0.0.1", str(node.port), node.bus)
        bounds = [0, SLOTS // 3, 2 * SLOTS // 3, SLOTS]
        for node, start, end in zip(self.nodes, bounds, bounds[1:], strict=False):
            node.cli("CLUSTER", "ADDSLOTSRANGE", str(start), str(end - 1))
        self._wait_until_all_know_all(everybody)
        for at, replica in enumerate(self.replicas):
            replica.cli("CLUSTER", "REPLICATE", self.nodes[at % 3].id)
        self.wait_until_well()
        for node in [] if self.replicas else self.nodes:
            node.cli("CONFIG", "SET", "cluster-node-timeout", str(LONG))
        for replica in self.replicas:
            eventually(lambda one=replica: "master_link_status:up" in one.cli("INFO"))  # type: ignore[misc]

    def _wait_until_all_know_all(self, everybody: Sequence[ClusterNode]) -> None:
        count = str(len(everybody))
        eventually(lambda: all(one.state("cluster_known_nodes") == count for one in everybody))

    def wait_until_well(self) -> None:
        """Until every node that runs says that all slots are served."""
        eventually(lambda: all(one.state("cluster_state") == "ok" for one in self.running))

    def wait_until_copied(self, at: int = 0) -> None:
        """Until the replica of that node has what was written there by now."""
        written = _field(self.nodes[at].cli("INFO"), "master_repl_offset")
        eventually(lambda: _field(self.replicas[at].cli("INFO"), "slave_repl_offset") >= written)

    def promote(self, replica: ClusterNode) -> None:
        """Have a replica take its master's place; asked again, for redis gives up after 5 s."""

        asked_at = -inf

        def is_master() -> bool:
            nonlocal asked_at
            if "role:master" in replica.cli("INFO", "replication"):
                return True
            if time.monotonic() > asked_at + 6:
                # Not sooner: each command begins the hand-over anew.
                asked_at = time.monotonic()
                replica.cli("CLUSTER", "FAILOVER")
            return False

        eventually(is_master, within=60)
        self.wait_until_agreed()

    def wait_until_agreed(self) -> None:
        """Until every node that runs says the same of all slots, as redis-cli demands.

        And knows the newest epoch: one that gets a slot under an older one loses it again to a
        word of its former owner that is still on its way, and then each sends to the other.
        """
        eventually(lambda: len({self._view(one) for one in self.running}) == 1)

    def _view(self, node: ClusterNode) -> tuple[object, ...]:
        return node.state("cluster_current_epoch"), self._slots(node)

    def _slots(self, node: ClusterNode) -> tuple[tuple[int, int, int], ...]:
        with self.client(node) as client:
            said = client.execute_command("CLUSTER SLOTS")
        return tuple(sorted((start, end, port) for start, end, (_, port, *_), *_ in said))

    @property
    def running(self) -> list[ClusterNode]:
        return [one for one in (*self.nodes, *self.replicas) if one.is_running]

    @property
    def url(self) -> str:
        login = f":{self._password}@" if self._password else ""
        return f"redis+cluster://{login}{self.nodes[0].address},{self.nodes[1].address}"

    def client(self, node: ClusterNode) -> redis.Redis:
        return redis.Redis(port=node.port, password=self._password, socket_timeout=5)

    def node_of(self, slot: int) -> ClusterNode:
        """The master that has a slot, as the first one sees it."""
        with self.client(self.running[0]) as client:
            said = client.execute_command("CLUSTER SLOTS")
        for start, end, (_, port, *_), *_ in said:
            if start <= slot <= end:
                return next(one for one in (*self.nodes, *self.replicas) if one.port == port)
        raise AssertionError(f"nobody has the slot {slot}")

    def begin_to_move(self, slot: int, target: ClusterNode) -> ClusterNode:
        """The slot is on its way; its keys are where they were. Returns where that is."""
        self.wait_until_agreed()
        source = self.node_of(slot)
        target.cli("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source.id)
        source.cli("CLUSTER", "SETSLOT", str(slot), "MIGRATING", target.id)
        return source

    def move_keys(self, slot: int, source: ClusterNode, target: ClusterNode) -> int:
        """Its keys are moved; returns how many."""
        with self.client(source) as client:
            keys = client.execute_command("CLUSTER GETKEYSINSLOT", slot, 1000)
            if keys:
                client.execute_command(
                    "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys
                )
        return len(keys)

    def end_move(self, slot: int, target: ClusterNode) -> None:
        """The slot is the target's, and all are told."""
        for node in (target, *(one for one in self.nodes if one is not target)):
            node.cli("CLUSTER", "SETSLOT", str(slot), "NODE", target.id)

    def move(self, slot: int, target: ClusterNode) -> None:
        """All of it, as `redis-cli --cluster reshard` does it."""
        source = self.begin_to_move(slot, target)
        self.move_keys(slot, source, target)
        self.end_move(slot, target)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()


def _field(info: str, name: str) -> int:
    """Of what INFO says; -1 if it says nothing of it."""
    return next((int(it[len(name) + 1 :]) for it in info.split() if it.startswith(name + ":")), -1)
