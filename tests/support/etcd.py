"""Private etcd servers, each on free loopback ports with data of its own in memory.

Nothing is fsynced: these servers lose power only together with the tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.etcd_tls import ClientCertificate, EtcdTls
from tests.support.servers import ServerFailed, find_server, free_port

START_WITHIN = 30.0
STOP_WITHIN = 5.0
START_TRIES = 3
# A lone member elects itself within a tick, and leases may be as short as 1 s.
ALONE = ("--heartbeat-interval", "10", "--election-timeout", "100")
# One that serves many tests ticks rarely: at 10 ms, five of them that do nothing take a tenth of a
# processor. Leases of 1 s still go.
CALM = ("--heartbeat-interval", "100", "--election-timeout", "500")
ROOT_PASSWORD = "root-secret"


def memory_folder() -> Path:
    shared = Path("/dev/shm")  # only where it is a memory file system
    where = shared if os.access(shared, os.W_OK) else None
    return Path(tempfile.mkdtemp(prefix="incumbent-etcd-", dir=where))


@dataclass(frozen=True)
class Place:
    """Where a member lives: its ports, and the network namespace that it is in."""

    host: str = "127.0.0.1"
    client_port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    status_port: int = field(default_factory=free_port)
    namespace: str = ""

    @property
    def peer(self) -> str:
        return f"http://{self.host}:{self.peer_port}"

    @property
    def status(self) -> str:
        return f"http://{self.host}:{self.status_port}"


class EtcdServer:
    """One etcd, alone or as a member of `cluster` (`name=peer,...`); it keeps its ports."""

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        tls: EtcdTls | None = None,
        place: Place | None = None,
        name: str = "alone",
        cluster: str = "",
    ) -> None:
        self.options = list(options)
        self.tls = tls
        self.name = name
        self.cluster = cluster
        self.place = place or Place()
        self.password = ""
        self._folder = memory_folder()
        self._process: subprocess.Popen[bytes] | None = None
        if not cluster:
            self._start_alone(may_move=place is None)

    # -- where it is

    @property
    def scheme(self) -> str:
        return "etcds" if self.tls else "etcd"

    @property
    def endpoint(self) -> str:
        return f"{self.place.host}:{self.place.client_port}"

    @property
    def endpoints(self) -> tuple[str, ...]:
        return (self.endpoint,)

    @property
    def port(self) -> int:
        return self.place.client_port

    @property
    def url(self) -> str:
        """The bare cluster, as a user writes it at first."""
        return f"{self.scheme}://{self.endpoint}"

    def store_url(
        self,
        prefix: str = "",
        *,
        login: str = "",
        certificate: ClientCertificate | None = None,
        restart_wait: str = "0",
    ) -> str:
        """The store of a test: these servers are younger than the leases are long.

        `login` is `user:password`; with TLS the authority is named.
        """
        options = {"restart_wait": restart_wait}
        if self.tls:
            options["ca"] = str(self.tls.ca)
        if certificate:
            options |= {"cert": str(certificate.cert), "key": str(certificate.key)}
        query = "&".join(f"{name}={value}" for name, value in options.items())
        who = f"{login}@" if login else ""
        return f"{self.scheme}://{who}{self.endpoint}{prefix}?{query}"

    @property
    def http(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.endpoint}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- what can happen to it

    def start(self) -> None:
        """Start it and wait until it answers for its cluster."""
        self.launch()
        self.wait_until_healthy()

    def launch(self) -> None:
        """Start it without waiting: the first member of a cluster has nobody to agree with."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def shut_down(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once; its data stays."""
        self._end(signal.SIGKILL)

    def restart(self, *, empty: bool = False) -> None:
        """Kill it and start it again at the same place, with or without its data."""
        self.kill()
        if empty:
            shutil.rmtree(self._folder / "data", ignore_errors=True)
        self.start()

    def snapshot(self) -> Path:
        """A snapshot as an operator saves one."""
        path = self._folder / f"snapshot-{len(list(self._folder.iterdir()))}"
        self.etcdctl("snapshot", "save", str(path))
        return path

    def restore(self, snapshot: Path, *options: str) -> None:
        """Kill it, and start it with what `etcdctl snapshot restore` makes by its defaults."""
        self.kill()
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        command = ["snapshot", "restore", str(snapshot), "--data-dir", str(self._folder / "data")]
        command += ["--name", self.name, "--initial-cluster", f"{self.name}={self.place.peer}"]
        self.etcdctl(*command, "--initial-advertise-peer-urls", self.place.peer, *options)
        self.start()

    def copy_data(self) -> Path:
        """Its data folder as it is now, copied while it stands still."""
        self.kill()
        copy = self._folder / f"copy-{len(list(self._folder.iterdir()))}"
        shutil.copytree(self._folder / "data", copy)
        self.start()
        return copy

    def put_back(self, copy: Path) -> None:
        """Kill it, and start it with an earlier data folder."""
        self.kill()
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        shutil.copytree(copy, self._folder / "data")
        self.start()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """For good: its data goes with it, so there is nothing to wait for."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- what an operator does

    def etcdctl(self, *command: str, check: bool = True) -> str:
        """The output of one command of the real tool, as root where there are passwords."""
        done = subprocess.run(
            self.etcdctl_command(*command),
            env=ETCDCTL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        if check and done.returncode:
            raise ServerFailed(f"etcdctl {command} said {done.stderr}")
        return done.stdout

    def etcdctl_command(self, *command: str) -> list[str]:
        """For a caller that starts it with the environment `ETCDCTL`."""
        line = [str(find_server("etcdctl")), "--endpoints", self.http]
        line += self.tls.etcdctl_options() if self.tls else []
        if self.password:
            line += ["--user", f"root:{self.password}"]
        return [*line, *command]

    def enable_auth(self) -> None:
        """From now on everything needs a user; root's password is `ROOT_PASSWORD`."""
        self.etcdctl("user", "add", f"root:{ROOT_PASSWORD}")
        self.etcdctl("user", "grant-role", "root", "root", check=False)
        self.etcdctl("auth", "enable")
        self.password = ROOT_PASSWORD

    def add_user(self, name: str, password: str, *prefixes: str) -> None:
        """Somebody with the rights to read and write below `prefixes`, and nothing else."""
        self.etcdctl("role", "add", name)
        for prefix in prefixes:
            self.etcdctl("role", "grant-permission", name, "--prefix=true", "readwrite", prefix)
        self.etcdctl("user", "add", f"{name}:{password}")
        self.etcdctl("user", "grant-role", name, name)

    def leases(self) -> list[int]:
        """The ids of all leases that there are."""
        return sorted(int(lease["ID"]) for lease in self._read("lease/leases").get("leases", ()))

    def keys(self, prefix: str = "") -> list[str]:
        if self.tls or self.password:
            return self.etcdctl("get", "--prefix", prefix, "--keys-only").split()
        return list(self.values(prefix))

    def values(self, prefix: str = "", *, by_age: bool = False) -> dict[str, str]:
        """The keys below a prefix with their values, in their order or that of their creation."""
        first = prefix.encode() or b"\0"
        end = first[:-1] + bytes([first[-1] + 1]) if prefix else b"\0"
        asked = {"key": b64encode(first).decode(), "range_end": b64encode(end).decode()}
        order = {"sort_order": "ASCEND", "sort_target": "CREATE"} if by_age else {}
        found = self._read("kv/range", **asked, **order).get("kvs", ())
        return {
            b64decode(it["key"]).decode(): b64decode(it.get("value", "")).decode() for it in found
        }

    def _read(self, what: str, **asked: str) -> dict[str, Any]:
        """From the gateway: tests look again and again, and each etcdctl is a process."""
        request = urllib.request.Request(f"{self.http}/v3/{what}", json.dumps(asked).encode())
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return dict(json.load(answer))
        except OSError as error:
            raise ServerFailed(f"etcd said {error} to {what}") from error

    def metrics(self) -> str:
        with urllib.request.urlopen(f"{self.place.status}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def requests(self) -> dict[str, int]:
        """How often each call (`Range`, `Txn`, `LeaseKeepAlive`, ...) was begun."""
        found = re.findall(
            r'^grpc_server_started_total\{.*?grpc_method="(\w+)".*\} (\S+)$', self.metrics(), re.M
        )
        return {method: int(float(count)) for method, count in found}

    @property
    def leads(self) -> bool:
        with suppress(OSError):
            return "\netcd_server_is_leader 1\n" in self.metrics()
        return False

    @property
    def healthy(self) -> bool:
        """It has a leader and serves."""
        with (
            suppress(OSError, ValueError),
            urllib.request.urlopen(f"{self.place.status}/health", timeout=2) as answer,
        ):
            return bool(json.load(answer).get("health") == "true")
        return False

    def wait_until_healthy(self) -> None:
        give_up = time.monotonic() + START_WITHIN
        while time.monotonic() < give_up:
            if self._running().poll() is not None:
                raise ServerFailed(f"etcd ended at once:\n{self.log}")
            if self.healthy:
                return
            time.sleep(0.01)
        raise ServerFailed(f"etcd was not healthy in {START_WITHIN} s:\n{self.log[-4000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- inside

    def _start_alone(self, *, may_move: bool) -> None:
        for tries_left in reversed(range(START_TRIES)):
            try:
                self.start()
            except ServerFailed:
                self._end(signal.SIGKILL)
                if not (tries_left and may_move and "address already in use" in self.log):
                    self.stop()
                    raise
                self.place = Place()
            else:
                return

    def _command(self) -> list[str]:
        inside = ["ip", "netns", "exec", self.place.namespace] if self.place.namespace else []
        command = [*inside, str(find_server("etcd")), "--name", self.name]
        command += ["--data-dir", str(self._folder / "data"), "--unsafe-no-fsync"]
        command += ["--logger", "zap", "--log-outputs", "stderr", "--bcrypt-cost", "4"]
        command += ["--listen-client-urls", self.http, "--advertise-client-urls", self.http]
        command += ["--listen-peer-urls", self.place.peer]
        command += ["--initial-advertise-peer-urls", self.place.peer]
        command += ["--initial-cluster", self.cluster or f"{self.name}={self.place.peer}"]
        # Plain HTTP whatever clients must use, so that the tests can always look.
        command += ["--listen-metrics-urls", self.place.status]
        command += () if self.cluster else ALONE
        command += self.tls.server_options() if self.tls else []
        return [*command, *self.options]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        # A frozen server takes TERM only once it runs again.
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# What etcdctl sees: the old releases default to a protocol that is gone.
ETCDCTL = {"ETCDCTL_API": "3", "PATH": os.environ.get("PATH", "")}
