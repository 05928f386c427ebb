"""Private MariaDB servers and their replicas, on free loopback ports.

A missing server is an error and never a skip. MySQL is in no package of Debian, and so in no test.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql

from tests.support.servers import (
    SERVERS,
    START_TRIES,
    ServerFailed,
    TlsFiles,
    find_server,
    free_port,
)
from tests.support.unprivileged import copy, memory, once_a_run

START_WITHIN = 60.0
STOP_WITHIN = 20.0
# Every commit is synced, as the default is: that costs nothing where files are memory.
SETTINGS = (
    *("bind-address=127.0.0.1", "skip-name-resolve", "performance-schema=off"),
    *("innodb-flush-log-at-trx-commit=1", "innodb-buffer-pool-size=16M", "max-connections=120"),
    *("innodb-log-file-size=4M", "skip-innodb-doublewrite", "aria-pagecache-buffer-size=128K"),
    *(
        "innodb-buffer-pool-dump-at-shutdown=0",
        "innodb-fast-shutdown=1",
        "character-set-server=latin1",
    ),
)


class MariaServer:
    """One server with its own data folder, and the user `root` without a password.

    `options` are settings such as `["read-only=1"]`. The port stays the same over `restart`, so
    clients find it again.
    """

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        tls: TlsFiles | None = None,
        copy_of: MariaServer | None = None,
        on_disk: bool = False,
    ) -> None:
        """`on_disk`: its data folder is not in memory, for benchmarks."""
        self.options = list(options)
        self.databases: list[str] = []
        where = None if on_disk else memory()
        self._folder = Path(tempfile.mkdtemp(prefix="incumbent-mariadb-", dir=where))
        self.data = self._folder / "data"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        if tls is not None:
            self.options += [f"ssl-cert={tls.cert}", f"ssl-key={tls.key}", f"ssl-ca={tls.ca}"]
        try:
            copy(copy_of.data if copy_of else _template(), self.data)
            self._start_on_a_free_port()
        except BaseException:
            self.stop()
            raise

    # -- where it is

    @property
    def url(self) -> str:
        return self.url_of("mysql")

    def url_of(self, database: str, user: str = "root", port: int = 0) -> str:
        """A URL of this server; `port` is that of a proxy before it."""
        return f"mysql://{user}@127.0.0.1:{port or self.port}/{database}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def socket(self) -> Path:
        return self._folder / "socket"

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- what an operator does

    def connect(self, database: str | None = None, **how: Any) -> pymysql.Connection[Any]:
        """A connection of an operator, past any proxy."""
        # The driver leaves a socket open that could not connect.
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(str(self.socket))
            connection = pymysql.connections.Connection(
                user="root",
                database=database,
                autocommit=True,
                read_timeout=30,
                ssl_disabled=True,
                defer_connect=True,
                **how,
            )
            connection.connect(sock)
        except BaseException:
            sock.close()
            raise
        return connection

    def sql(self, statement: str, database: str | None = None) -> tuple[tuple[Any, ...], ...]:
        """Run one statement on a connection of its own; its rows."""
        with self.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return tuple(cursor.fetchall())

    def new_database(self) -> str:
        """Create a database with a name of its own, and return that name."""
        name = f"t{secrets.token_hex(6)}"
        self.sql(f"CREATE DATABASE {name}")
        self.databases.append(name)
        return name

    def drop_databases(self) -> None:
        """Drop those that `new_database` has made."""
        while self.databases:
            self.sql(f"DROP DATABASE {self.databases.pop()}")

    def set(self, *settings: str) -> None:
        """Change settings such as `read_only=1` for the running server."""
        for setting in settings:
            self.sql(f"SET GLOBAL {setting}")

    # -- what can happen to it

    def start(self) -> None:
        """Start it on its port and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )
        self._wait_until_it_answers()

    def kill(self) -> None:
        """End it at once, as a power switch does; its data stays."""
        self._end(signal.SIGKILL)

    def shut_down(self) -> None:
        """End it in order, as a service manager does; its data stays."""
        self._end(signal.SIGTERM)

    def restart(self, *, empty: bool = False, graceful: bool = False) -> None:
        """End it and start it again on the same port, with or without its data."""
        self._end(signal.SIGTERM if graceful else signal.SIGKILL)
        if empty:
            shutil.rmtree(self.data)
            copy(_template(), self.data)
        self.start()

    @contextmanager
    def replica(self) -> Iterator[MariaServer]:
        """A replica, read-only, which gets the binary log from here on. Restarts this server."""
        self.shut_down()
        with MariaServer(["server-id=2", "read-only=1"], copy_of=self) as replica:
            self.options += ["log-bin=log", "server-id=1"]
            self.start()
            replica.sql(
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1',MASTER_PORT={self.port},"
                "MASTER_USER='root',MASTER_LOG_FILE='log.000001',MASTER_LOG_POS=4"
            )
            replica.sql("START SLAVE")
            yield replica

    def promote(self) -> None:
        """Let a replica be the primary from here on."""
        self.sql("STOP SLAVE")
        self.set("read_only=0")

    def freeze(self) -> None:
        """Stop it; returns when no thread runs any more: only one of them hears of it at once."""
        os.kill(self.pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self.pid}/task")
        while any(_state(task) != "T" for task in tasks.iterdir()):
            time.sleep(0.002)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it for good and remove its folder."""
        self._end(signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)

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

    def _command(self) -> list[str]:
        where = [*_folders(self.data), f"port={self.port}", f"socket={self.socket}"]
        return [*_program(), *(f"--{setting}" for setting in (*where, *SETTINGS, *self.options))]

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

    def _wait_until_it_answers(self) -> None:
        give_up = time.monotonic() + START_WITHIN
        while time.monotonic() < give_up:
            if self._running().poll() is not None:
                raise ServerFailed(f"mariadbd ended at once:\n{self.log}")
            with suppress(OSError, pymysql.MySQLError):
                self.sql("SELECT 1")
                return
            time.sleep(0.02)
        raise ServerFailed(f"mariadbd gave no answer in {START_WITHIN} s:\n{self.log}")

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


def _state(task: Path) -> str:
    # "pid (name) state ...", where the name may hold blanks.
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def _program() -> list[str]:
    program = [str(find_server("mariadbd")), "--no-defaults"]
    if _unpacked().exists():
        program.append(f"--basedir={_unpacked()}")
    return [*program, "--user=root"] if os.geteuid() == 0 else program


def _unpacked() -> Path:
    root = SERVERS.parent.resolve() / "root" / "usr"
    return root if (root / "sbin" / "mariadbd").exists() else Path("/nonexistent")


def _folders(data: Path) -> list[str]:
    # A server that starts removes the temporary tables of others from a folder that they share.
    return [f"datadir={data}", f"tmpdir={data}"]


def _template() -> Path:
    """A data folder that is copied: to make one takes a second."""
    return once_a_run("mariadb", _make_template)


def _make_template(data: Path) -> None:
    (data / "mysql").mkdir(parents=True)
    share = (_unpacked() if _unpacked().exists() else Path("/usr")) / "share" / "mysql"
    texts = [
        (share / f"mysql_system_tables{part}.sql").read_text(errors="replace")
        for part in ("", "_data")
    ]
    settings = [f"--{setting}" for setting in (*_folders(data), *SETTINGS)]
    done = subprocess.run(
        [*_program(), "--bootstrap", *settings],
        check=False,
        input="\n".join(["USE mysql;", *texts]),
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )
    if done.returncode:
        raise ServerFailed(f"mariadbd --bootstrap failed:\n{done.stdout}\n{done.stderr}")
