"""Private servers: each on a free loopback port, with data of its own, ended by its process id.

A missing server is an error and never a skip: a suite that passes because it
did not run anything is worse than one that fails.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ROOT / ".servers" / "bin"
START_WITHIN = 30.0
STOP_WITHIN = 5.0
# Another process may take the port between the look and the start.
START_TRIES = 3


class ServerMissing(RuntimeError):
    """The server's program is not on this machine."""


class ServerFailed(RuntimeError):
    """The server did not start, with what it said."""


def find_server(name: str = "redis-server") -> Path:
    """The program that `scripts/servers.sh` brought, else the machine's own."""
    ours = SERVERS / name
    if ours.exists():
        return ours
    found = shutil.which(name)
    if found is None:
        raise ServerMissing(f"no {name} on this machine: run `scripts/servers.sh` first")
    return Path(found)


@cache
def server_version(program: Path) -> tuple[int, ...]:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", said)
    if found is None:
        raise ServerFailed(f"{program} --version said {said!r}")
    return tuple(int(part) for part in found.groups())


_GIVEN_OUT: Final[deque[int]] = deque(maxlen=500)


def free_port() -> int:
    """A free port below those that the system hands out by itself.

    One of those could go to a client, or to another test, while a server is being restarted. Each
    worker has ports of its own, and does not give one out twice in a short time: a cluster chooses
    all its ports before it starts.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = random.SystemRandom().randrange(10_000 + worker % workers, 32_000, workers)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            if port not in _GIVEN_OUT:
                _GIVEN_OUT.append(port)
                return port


class RedisServer:
    """One redis-server, or another that takes its options (`program="valkey-server"`).

    `options` are its command-line options, such as `["--appendonly", "yes"]`.
    The port stays the same over `restart`, so clients find it again.
    """

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        program: str = "redis-server",
        password: str | None = None,
        unix_socket: bool = False,
        tls: TlsFiles | None = None,
    ) -> None:
        self.program = find_server(program)
        self.options = list(options)
        self.password = password
        self.tls = tls
        self._folder = Path(tempfile.mkdtemp(prefix="incumbent-redis-"))
        self.socket_path = self._folder / "redis.sock" if unix_socket else None
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start_on_a_free_port()
        except BaseException:
            self.stop()
            raise

    # -- where it is

    @property
    def url(self) -> str:
        scheme = "rediss" if self.tls else "redis"
        return f"{scheme}://{self._credentials}127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        if self.socket_path is None:
            raise ServerFailed("this server was started without unix_socket=True")
        return f"redis+unix://{self._credentials}{self.socket_path}"

    @property
    def _credentials(self) -> str:
        return f":{self.password}@" if self.password else ""

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def folder(self) -> Path:
        """Where its data are."""
        return self._folder

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- what can happen to it

    def start(self, *, loaded: bool = True) -> None:
        """Start it on its port and wait until it answers, and (`loaded`) has all its data."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait_until_it_answers(loaded=loaded)

    def shut_down(self) -> None:
        """End it in order, as a service manager does; its data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once, as a power switch for the process does; its data stays."""
        self._end(signal.SIGKILL)

    def restart(self, *, empty: bool = False, graceful: bool = False) -> None:
        """End it and start it again on the same port, with or without its data."""
        self._end(signal.SIGTERM if graceful else signal.SIGKILL)
        if empty:
            self._drop_data()
        self.start()

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it for good and remove its folder."""
        self._end(signal.SIGTERM)
        shutil.rmtree(self._folder, ignore_errors=True)

    def cli(self, *command: str) -> str:
        """Run one command on a connection of its own, as an operator would."""
        with self._connect() as sock:
            if self.password:
                _ask(sock, ["AUTH", self.password])
            return _ask(sock, command)

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

    def _start_on_a_free_port(self) -> None:
        for tries_left in reversed(range(START_TRIES)):
            self.port = free_port()
            try:
                self.start()
            except ServerFailed:
                if not tries_left or "Address already in use" not in self.log:
                    raise
            else:
                break

    def _command(self) -> list[str]:
        command = [str(self.program), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        command += self._port_options()
        # No snapshots: a test that wants its data to survive asks for it.
        command += ["--save", "", "--daemonize", "no"]
        if server_version(self.program) >= (7,):
            # DEBUG SLEEP and friends are how a slow server is made.
            command += ["--enable-debug-command", "yes"]
        if self.password:
            command += ["--requirepass", self.password]
        if self.socket_path:
            command += ["--unixsocket", str(self.socket_path)]
        return command + self.options

    def _port_options(self) -> list[str]:
        if self.tls is None:
            return ["--port", str(self.port)]
        return ["--port", "0", "--tls-port", str(self.port), *self.tls.server_options()]

    def _wait_until_it_answers(self, *, loaded: bool) -> None:
        give_up = time.monotonic() + START_WITHIN
        while time.monotonic() < give_up:
            if self._running().poll() is not None:
                raise ServerFailed(f"{self.program.name} ended at once:\n{self.log}")
            if self._answers(loaded=loaded):
                return
            time.sleep(0.01)
        raise ServerFailed(f"{self.program.name} gave no answer in {START_WITHIN} s:\n{self.log}")

    def _answers(self, *, loaded: bool) -> bool:
        # A port that listens may be another's, or a server that still loads its data.
        with suppress(OSError):
            said = self.cli("INFO")
            return f"process_id:{self.pid}" in said and not (loaded and "loading:1" in said)
        return False

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=2)
        return self.tls.wrap(sock) if self.tls else sock

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

    def _drop_data(self) -> None:
        for path in self._folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "log":
                path.unlink()


# An RSA key costs a second of a processor.
NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
# Python 3.13 takes no certificate without them.
MAY_SIGN = "keyUsage=critical,keyCertSign,cRLSign"
SIGNED_BY = "authorityKeyIdentifier=keyid"


class TlsFiles:
    """A certificate authority and a server certificate for 127.0.0.1, made with openssl."""

    def __init__(self, folder: Path) -> None:
        self.ca = folder / "ca.crt"
        self.cert = folder / "server.crt"
        self.key = folder / "server.key"
        self._make(folder)

    def server_options(self) -> list[str]:
        files = ["--tls-cert-file", str(self.cert), "--tls-key-file", str(self.key)]
        return [*files, "--tls-ca-cert-file", str(self.ca), "--tls-auth-clients", "no"]

    def wrap(self, sock: socket.socket) -> socket.socket:
        import ssl

        context = ssl.create_default_context(cafile=str(self.ca))
        return context.wrap_socket(sock, server_hostname="127.0.0.1")

    def _make(self, folder: Path) -> None:
        ca_key, request, extra = folder / "ca.key", folder / "server.csr", folder / "server.ext"
        extra.write_text(f"subjectAltName=IP:127.0.0.1,DNS:localhost\n{SIGNED_BY}\n")
        key = [*NEW_KEY, "-days", "2"]
        subject = ["-subj", "/CN=test authority", "-addext", MAY_SIGN]
        _openssl("req", "-x509", *key, *subject, *_out(ca_key, self.ca))
        _openssl("req", *NEW_KEY, "-subj", "/CN=localhost", *_out(self.key, request))
        signing = ["-CA", str(self.ca), "-CAkey", str(ca_key), "-CAcreateserial", "-days", "2"]
        extension = ["-extfile", str(extra), "-out", str(self.cert)]
        _openssl("x509", "-req", "-in", str(request), *signing, *extension)


def _out(key: Path, out: Path) -> list[str]:
    return ["-keyout", str(key), "-out", str(out)]


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise ServerMissing("no openssl on this machine: install it to test TLS")
    subprocess.run([program, *arguments], check=True, capture_output=True, timeout=30)


def _ask(sock: socket.socket, command: Sequence[str]) -> str:
    """One request and its reply as text; errors of the server come back as text too."""
    parts = [f"*{len(command)}\r\n".encode()]
    parts += [b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in command]
    sock.sendall(b"".join(parts))
    with sock.makefile("rb") as replies:
        head = replies.readline()
        if not head.startswith(b"$") or head == b"$-1\r\n":
            return head[1:].strip().decode()
        return replies.read(int(head[1:]) + 2)[:-2].decode()
