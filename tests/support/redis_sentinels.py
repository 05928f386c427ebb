"""A master, two replicas and three sentinels, each server behind a network that can fail."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer, TlsFiles
from tests.support.waiting import eventually

SERVICE = "main"
DOWN_AFTER, CALM = 0.5, 60.0
"""Seconds without an answer: for the first while a failover is awaited, and else for the second.

A busy machine pauses for longer than the first, and no other failover is wanted then.
"""


class Node:
    """One server, under the address that all others know: its proxy's."""

    def __init__(
        self, options: Sequence[str], program: str, master: Node | None, secret: str | None
    ) -> None:
        self.server = RedisServer(
            [
                *options,
                *("--replica-announce-ip", "127.0.0.1", "--repl-diskless-sync-delay", "0"),
                *("--repl-ping-replica-period", "1", "--repl-timeout", "2"),
                *(("--masterauth", secret) if secret else ()),
            ],
            program=program,
            password=secret,
        )
        self.proxy = FaultProxy(self.server.port)
        self.server.cli("CONFIG", "SET", "replica-announce-port", str(self.proxy.port))
        self.server.options += ["--replica-announce-port", str(self.proxy.port)]
        if master is not None:
            self.server.cli("REPLICAOF", "127.0.0.1", str(master.proxy.port))

    def info(self, name: str) -> str:
        """One field of INFO."""
        found = [
            line.partition(":")[2]
            for line in self.server.cli("INFO").splitlines()
            if line.startswith(f"{name}:")
        ]
        return found[0].strip() if found else ""

    def close(self) -> None:
        self.proxy.close()
        self.server.stop()


class SentinelServer(RedisServer):
    """One sentinel; its configuration names the others, so that nobody waits for a hello."""

    def __init__(
        self,
        lines: Sequence[str],
        *,
        program: str = "redis-server",
        password: str | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._lines = list(lines)
        super().__init__(program=program, password=password, tls=tls)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def _conf(self) -> Path:
        return self._folder / "sentinel.conf"

    def _command(self) -> list[str]:
        own = [*self._port_lines(), "bind 127.0.0.1", f"dir {self._folder}", *self._lines]
        if self.password:
            own += [f"requirepass {self.password}", f"sentinel sentinel-pass {self.password}"]
        if not self._conf.exists():
            self._conf.write_text("\n".join(own) + "\n")
        return [str(self.program), str(self._conf), "--sentinel"]

    def _port_lines(self) -> list[str]:
        options = [*self._port_options(), *(("--tls-replication", "yes") if self.tls else ())]
        pairs = zip(options[::2], options[1::2], strict=True)
        return [f"{name.removeprefix('--')} {value}" for name, value in pairs]


class Sentinels:
    """See the module. `url` names the sentinels; `master` is whom they say it is."""

    def __init__(
        self,
        *,
        program: str = "redis-server",
        password: str | None = None,
        sentinel_password: str | None = None,
        options: Sequence[str] = (),
        replicas: int = 2,
    ) -> None:
        self._stack = ExitStack()
        self._program, self._password = program, password
        self.nodes: list[Node] = []
        self.sentinels: list[SentinelServer] = []
        self.sentinel_password = sentinel_password
        try:
            for _ in range(1 + replicas):
                master = self.nodes[0] if self.nodes else None
                self.nodes.append(Node(options, program, master, password))
                self._stack.callback(self.nodes[-1].close)
            self._wait_for_replicas(replicas)
            self._start_sentinels()
        except BaseException:
            self._stack.close()
            raise

    def _wait_for_replicas(self, count: int) -> None:
        eventually(lambda: self.nodes[0].info("connected_slaves") == str(count))
        for node in self.nodes[1:]:
            eventually(lambda node=node: node.info("master_link_status") == "up")  # type: ignore[misc]

    def _start_sentinels(self) -> None:
        port = self.nodes[0].proxy.port
        names = [secrets.token_hex(20) for _ in range(3)]
        lines = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {port} 2",
            f"sentinel down-after-milliseconds {SERVICE} {CALM * 1000:.0f}",
            f"sentinel failover-timeout {SERVICE} 2000",
            *([f"sentinel auth-pass {SERVICE} {self._password}"] if self._password else []),
        ]
        for name in names:
            one = SentinelServer(
                [f"sentinel myid {name}", *lines],
                program=self._program,
                password=self.sentinel_password,
            )
            self.sentinels.append(one)
            self._stack.callback(one.stop)
        # They find each other within some seconds by themselves; told, at once.
        eventually(lambda: all(self._knows_all(one) for one in self.sentinels))

    def _knows_all(self, one: SentinelServer) -> bool:
        try:
            with self._client(one) as client:
                said = client.sentinel_master(SERVICE)
        except redis.RedisError:
            return False
        others = int(said["num-other-sentinels"])
        return bool(others == 2 and int(said["num-slaves"]) == len(self.nodes) - 1)

    def _client(self, one: SentinelServer) -> redis.Redis:
        return redis.Redis(port=one.port, password=self.sentinel_password, socket_timeout=2)

    @property
    def url(self) -> str:
        login = f":{self._password}@" if self._password else ""
        hosts = ",".join(one.address for one in self.sentinels)
        return f"redis+sentinel://{login}{hosts}/{SERVICE}"

    @property
    def master(self) -> Node:
        """By the first sentinel that answers."""
        return self._node_at(self.master_port())

    def master_port(self) -> int:
        for one in self.sentinels:
            with suppress(redis.RedisError), self._client(one) as client:
                return int(client.sentinel_get_master_addr_by_name(SERVICE)[1])
        raise AssertionError("no sentinel answers")

    def _node_at(self, port: int) -> Node:
        return next(node for node in self.nodes if node.proxy.port == port)

    def wait_for_failover(self, before: Node) -> Node:
        """Until all sentinels that run name another master: they believe soon that one is down."""
        self._believe_down_after(DOWN_AFTER)
        eventually(lambda: all(port != before.proxy.port for port in self._ports()))
        self._believe_down_after(CALM)
        return self.master

    def _believe_down_after(self, seconds: float) -> None:
        for one in self.sentinels:
            with suppress(redis.RedisError), self._client(one) as client:
                client.sentinel_set(SERVICE, "down-after-milliseconds", int(seconds * 1000))

    def _ports(self) -> list[int]:
        ports = []
        for one in self.sentinels:
            with suppress(redis.RedisError), self._client(one) as client:
                ports.append(int(client.sentinel_get_master_addr_by_name(SERVICE)[1]))
        return ports

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
