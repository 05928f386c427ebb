"""The processes of a fleet, and how a fault reaches them. Every signal goes to a known process."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tests.chaos.schedule import GRACE, TTL, Schedule
from tests.cli.tool import environment
from tests.e2e.fleet import WORKER
from tests.stores.kubernetes.world import open_at, url_of
from tests.stores.mysql import world as mysql
from tests.stores.party import Party, soon
from tests.stores.postgresql.world import new_database
from tests.support.etcd import EtcdServer
from tests.support.kubernetes import ApiServer
from tests.support.mariadb import MariaServer
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

PRODUCT = ("-m", "incumbent")
PLANTED_PRODUCT = ("-m", "tests.chaos.planted")
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "": (("lead",), ()),
    "permits": (("run", "--wait", "--permits", "2"), ("--one-of", "2")),
    "seats": (("lead",), ("--one-of", "2")),
    "readers": (("run", "--wait", "--fair"), ("--reader",)),
    "writer": (("run", "--wait", "--fair"), ()),
}
"""What an instance is asked to run, and what its worker tells the judge."""
_ORDERS: dict[str, tuple[str, ...]] = {
    "": (),
    "fair": ("--fair",),
    "priority": ("--step-down-after", "1s", "--priority"),
}
_NOT_IN_THE_PRODUCT = {"readers": "reading", "seats": "with_seats"}
"""What the command line does not have; see `planted`."""
_AS_PID_1 = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
_SIGNALS = {
    "kill": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "term": signal.SIGTERM,
    # What a worker does not handle ends it, as if it had chosen to.
    "exit": signal.SIGUSR2,
}
_RESTART_AFTER = 0.2
_END_WITHIN = 3.0
_SLOW = {"slow, in time": 0.12, "slow, too late": 0.21}
"""Seconds, around the request timeout of a sixth of the ttl."""


class Process:
    """One process, by a descriptor: a signal never reaches whoever got its number later."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def send(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signum)

    def close(self) -> None:
        os.close(self._fd)


class Instance:
    """One `incumbent lead` or `run`, started again when it ends, as an orchestrator does."""

    def __init__(
        self,
        schedule: Schedule,
        number: int,
        store: str,
        folder: Path,
        product: tuple[str, ...] = PRODUCT,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.holder, self._environ = f"i{number}", environ
        self._said = folder / f"{self.holder}.said"
        role = ""
        if schedule.shares:
            role = "writer" if schedule.shares == "readers" and number == 0 else schedule.shares
        if role in _NOT_IN_THE_PRODUCT:
            product = PLANTED_PRODUCT if product is PRODUCT else product
            product = (*product, _NOT_IN_THE_PRODUCT[role])
        order = _ORDERS[schedule.order]
        order += (str(number),) if schedule.order == "priority" else ()
        self._command = _command(schedule, role, order, self.holder, store, folder, product)
        self._known: dict[str, Process] = {}
        self._started: subprocess.Popen[bytes] | None = None
        self._ended_at: float | None = None

    def start(self) -> None:
        with self._said.open("ab") as said:
            self._started = subprocess.Popen(
                self._command,
                env=environment(self._environ),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def start_again(self) -> None:
        """Start it if it ended a moment ago."""
        if self._started is None or self._started.poll() is None:
            self._ended_at = None
            return
        if self._ended_at is None:
            self._ended_at = time.monotonic()
        elif time.monotonic() - self._ended_at > _RESTART_AFTER:
            self.start()

    def look(self) -> None:
        """Who is who now; whom it no longer sees stays known by what it was."""
        if self._started is None or self._started.poll() is not None:
            return
        for role, pid in _roles(self._started.pid):
            if role not in self._known or self._known[role].pid != pid:
                with suppress(ProcessLookupError):
                    self._learn(role, Process(pid))

    def send(self, how: str, role: str) -> None:
        if role in self._known:
            self._known[role].send(_SIGNALS[how])

    def resume(self, role: str) -> None:
        if role in self._known:
            self._known[role].send(signal.SIGCONT)

    def ask_to_end(self) -> None:
        self.look()
        for process in self._known.values():
            process.send(signal.SIGCONT)
        if "supervisor" in self._known:
            self._known["supervisor"].send(signal.SIGTERM)

    def close(self) -> None:
        if self._started is not None:
            with suppress(subprocess.TimeoutExpired):
                self._started.wait(_END_WITHIN)
            for process in self._known.values():
                process.send(signal.SIGKILL)
            self._started.kill()
            self._started.wait()
        for process in self._known.values():
            process.close()
        self._known.clear()

    @property
    def said(self) -> str:
        return self._said.read_text(errors="replace") if self._said.exists() else ""

    def _learn(self, role: str, process: Process) -> None:
        if role in self._known:
            self._known[role].close()
        self._known[role] = process


def _command(
    schedule: Schedule,
    role: str,
    order: tuple[str, ...],
    holder: str,
    store: str,
    folder: Path,
    product: tuple[str, ...],
) -> list[str]:
    outside = _AS_PID_1 if schedule.isolation == "container" else ()
    isolate = ("--isolate", schedule.isolation)
    options = ("--holder", holder, "--ttl", str(TTL), "--grace", str(GRACE), *isolate)
    what, as_what = _ROLES[role]
    worker = (sys.executable, "-I", "-S", str(WORKER), str(folder), *schedule.worker, *as_what)
    line = ("-s", store, what[0], "job", *what[1:], *order, *options, "--", *worker)
    return [*outside, sys.executable, *product, *line]


def _roles(pid: int) -> Iterator[tuple[str, int]]:
    """supervisor, guard and child, as /proc shows them."""
    if _words(pid)[:1] == [b"unshare"]:
        for child in _children(pid):
            yield from _roles(child)
        return
    yield "supervisor", pid
    # The first worker is CMD: its orphans come to a supervisor that reaps them.
    below = _children(pid)
    yield from (("guard", child) for child in below if _name(child) == "incumbent-guard")
    yield from (("child", child) for child in list(filter(_is_worker, below))[:1])


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _is_worker(pid: int) -> bool:
    words = _words(pid)
    # The line of the supervisor, and of its forks, has the worker in it too.
    return str(WORKER).encode() in words and not {b"lead", b"run"} & set(words)


def _words(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return sorted(found)


# -- stores ----------------------------------------------------------------------------------------

Action = Callable[[], object]


class File:
    """A SQLite store; locked: a peer keeps its write transaction open."""

    environ: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self._path = folder / "leases.db"
        self._peer: sqlite3.Connection | None = None

    def url(self, _number: int) -> str:
        return f"sqlite:///{self._path}"

    def begin(self, _kind: str, _numbers: list[int]) -> None:
        self.heal()
        self._peer = sqlite3.connect(
            self._path, timeout=0.3, isolation_level=None, check_same_thread=False
        )
        # A stopped holder may be inside a transaction of its own: then the file is locked as well.
        with suppress(sqlite3.OperationalError):
            self._peer.execute("BEGIN IMMEDIATE")

    def end(self, _kind: str, _numbers: list[int]) -> None:
        self.heal()

    def heal(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    close = heal


class ClusterServer(ApiServer):
    """An API server, whose namespace has been in use for an hour; empty: it is made anew."""

    kill = shut_down = ApiServer.stop
    _place = "fleet"

    def __init__(self) -> None:
        super().__init__()
        self.create_namespace(self._place)
        party = Party(open_at(url_of(self, self._place)))
        party.store.read(party.key, soon())
        party.store.close()
        self.set_clock(3600.0)

    def restart(self, *, empty: bool) -> None:
        assert empty
        self.thaw()
        self.delete_namespace(self._place)
        self.create_namespace(self._place)

    def contexts(self, proxies: list[FaultProxy]) -> Mapping[str, str]:
        """The environment with a context for each network."""
        path = self.folder / "contexts"
        places = {f"i{number}": proxy.port for number, proxy in enumerate(proxies)}
        made = {
            "clusters": [
                {"name": name, "cluster": {"server": f"http://127.0.0.1:{port}"}}
                for name, port in places.items()
            ],
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": "u"}} for name in places
            ],
            "users": [{"name": "u", "user": {"token": self.token}}],
        }
        path.write_text(json.dumps(made))
        return {"KUBECONFIG": str(path)}


class Server:
    """A server that keeps its data, and for each instance a network of its own before it."""

    environ: Mapping[str, str] = {}

    def __init__(self, schedule: Schedule, instances: int) -> None:
        # All have the same ttl: without a name it would be that of leases with the default.
        self._wait = f"?restart_wait={TTL if schedule.restart_wait else 0}"
        self._server: RedisServer | PostgresServer | MariaServer | EtcdServer | ClusterServer
        self._database = ""
        if schedule.store == "redis":
            self._server = RedisServer(["--appendonly", "yes", "--appendfsync", "always"])
        elif schedule.store == "etcd":
            self._server = EtcdServer()
        elif schedule.store == "kubernetes":
            self._server = ClusterServer()
        elif schedule.store == "mysql":
            self._server = MariaServer()
            self._database = mysql.new_database(self._server)
        else:
            self._server = PostgresServer()
            self._database = new_database(self._server)
        self._lives = True
        self._proxies = [FaultProxy(self._server.port) for _ in range(instances)]
        if isinstance(self._server, ClusterServer):
            self.environ = self._server.contexts(self._proxies)

    def url(self, number: int) -> str:
        proxy, server = self._proxies[number], self._server
        if isinstance(server, PostgresServer | MariaServer):
            return server.url_of(self._database, port=proxy.port) + self._wait
        if isinstance(server, ClusterServer):
            return f"kubernetes://i{number}/fleet{self._wait}"
        if isinstance(server, EtcdServer):
            return f"etcd://127.0.0.1:{proxy.port}{self._wait}"
        return proxy.url + self._wait

    def begin(self, kind: str, numbers: list[int]) -> None:
        if kind.endswith("server") or kind in ("restart empty", "flush", "watches cut"):
            self._befall_server(kind)
            return
        for number in numbers:
            _befall_network(self._proxies[number], kind)

    def end(self, kind: str, numbers: list[int]) -> None:
        if kind == "stop server":
            self._thaw()
        elif kind in ("kill server", "term server", "restart empty"):
            self._start()
        elif kind not in ("flush", "watches cut"):
            for number in numbers:
                self._proxies[number].heal()

    def heal(self) -> None:
        self._start()
        self._thaw()
        for proxy in self._proxies:
            proxy.heal()

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        if isinstance(self._server, ClusterServer):
            self._server.close()
        else:
            self._server.stop()

    def _befall_server(self, kind: str) -> None:
        if not self._lives:
            return
        match kind:
            case "stop server":
                self._server.freeze()
            case "watches cut":
                self._thaw()
                assert isinstance(self._server, ClusterServer)
                self._server.cut_watches()
            case "flush":
                self._thaw()
                assert isinstance(self._server, RedisServer)
                self._server.cli("FLUSHALL")
            case "restart empty":
                # Down for a while as well: `end` starts it.
                self._server.restart(empty=True)
                self._server.kill()
                self._lives = False
            case _:
                self._server.kill() if kind == "kill server" else self._server.shut_down()
                self._lives = False

    def _start(self) -> None:
        if not self._lives:
            self._server.start()
            self._lives = True

    def _thaw(self) -> None:
        if self._lives:
            self._server.thaw()


def _befall_network(proxy: FaultProxy, kind: str) -> None:
    match kind:
        case "unreachable":
            proxy.refuse()
        case "black hole":
            proxy.blackhole()
        case "answers lost":
            proxy.drop_replies()
        case "requests lost":
            proxy.drop_requests()
        case _:
            proxy.delay(_SLOW[kind] / 2)
