"""Private PostgreSQL servers, their standbys and poolers, on free loopback ports.

PostgreSQL and pgbouncer refuse to run as root, so root starts them as an unprivileged user with
data of its own. A missing server is an error and never a skip.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg

from tests.support.servers import START_TRIES, ServerFailed, TlsFiles, free_port
from tests.support.unprivileged import (
    children,
    copy,
    give_away,
    memory,
    once_a_run,
    private_folder,
    program,
    run,
    start,
    wait_until_gone,
)

START_WITHIN = 30.0
STOP_WITHIN = 10.0
# No process outlives the machine here, so the page cache is as durable as the disk. A test of
# durability, or a benchmark, says `fsync=on` itself. JIT needs a library that is not unpacked.
SETTINGS = (
    "autovacuum=off",
    "fsync=off",
    "jit=off",
    "listen_addresses=127.0.0.1",
    "max_connections=60",
    "shared_buffers=16MB",
    "wal_retrieve_retry_interval=100ms",
)


class PostgresServer:
    """One PostgreSQL with its own data folder and one superuser, `postgres`.

    `options` are settings such as `["idle_session_timeout=1s"]`. With `password`, every role needs
    one over TCP; `psql` comes in over a unix socket, where nobody is asked. The port stays the
    same over `restart`, so clients find it again.
    """

    def __init__(
        self,
        options: Sequence[str] = (),
        *,
        password: str | None = None,
        tls: TlsFiles | None = None,
        copy_of: PostgresServer | None = None,
    ) -> None:
        self.options = list(options)
        self.password = password
        self.databases: list[str] = []
        self.templates: set[str] = set()
        self._folder = private_folder(None if "fsync=on" in self.options else memory())
        self._data = self._folder / "data"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._make_data(copy_of)
            self._tls_options = self._copy_tls(tls) if tls else []
            self._start_on_a_free_port()
            if password and copy_of is None:
                self.psql(f"alter role postgres password '{password}'")
        except BaseException:
            self.stop()
            raise

    # -- where it is

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(
        self, database: str, user: str = "postgres", password: str | None = None, port: int = 0
    ) -> str:
        """A URL of this server; `port` is that of a proxy or a pooler before it."""
        secret = password or self.password
        credentials = f"{user}:{quote(secret, safe='')}" if secret else user
        return f"postgresql://{credentials}@127.0.0.1:{port or self.port}/{database}"

    @property
    def pid(self) -> int:
        """The postmaster's process id."""
        return self._running().pid

    @property
    def socket_folder(self) -> Path:
        return self._folder

    @property
    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    # -- what an operator does

    def psql(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements on a connection of its own; the rows of the last one."""
        with self._connect(database) as connection:
            # Bytes: the driver's types ask for literals in the source, and this is an operator.
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def new_database(self, template: str = "template1") -> str:
        """Create a database with a name of its own, and return that name."""
        name = f"t{secrets.token_hex(6)}"
        with self._connect() as connection:
            # Files are copied for half of what their pages in the log cost, which 15 made the rule.
            how = "strategy file_copy" if connection.info.server_version >= 150000 else ""
            connection.execute(f"create database {name} template {template} {how}".encode())
        self.databases.append(name)
        return name

    def drop_databases(self) -> None:
        """Drop those that `new_database` has made; each is 8 MB, and often in memory."""
        while self.databases:
            self.psql(f"drop database {self.databases.pop()} with (force)")

    def set(self, *settings: str) -> None:
        """Change settings such as `statement_timeout=1ms` for every new session of all roles."""
        for setting in settings:
            name, _, value = setting.partition("=")
            self.psql(f"alter system set {name} = '{value}'")
        self.psql("select pg_reload_conf()")

    def standby(self, options: Sequence[str] = ()) -> PostgresServer:
        """A streaming replica of this server: read-only until `promote`."""
        return PostgresServer(options, password=self.password, copy_of=self)

    def promote(self) -> None:
        """Make this standby a primary and wait until it takes writes."""
        assert self.psql("select pg_promote()") == [(True,)], self.log

    def caught_up_with(self, primary: PostgresServer, within: float = 10.0) -> None:
        """Wait until all that `primary` has written is applied here."""
        ((position,),) = primary.psql("select pg_current_wal_flush_lsn()::text")
        question = f"select pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
        give_up = time.monotonic() + within
        while self.psql(question) != [(True,)]:
            assert time.monotonic() < give_up, self.log
            time.sleep(0.01)

    # -- what can happen to it

    def start(self) -> None:
        """Start it on its port and wait until it answers."""
        with (self._folder / "log").open("ab") as log:
            self._process = start([program("postgres"), *self._arguments()], log)
        self._wait_until_it_answers()

    def shut_down(self, *, immediate: bool = False) -> None:
        """End it in order (clients are cut off), or without a checkpoint; its data stays."""
        self._end(signal.SIGQUIT if immediate else signal.SIGINT)

    def kill(self) -> None:
        """End all its processes at once, as a power switch does; its data stays."""
        self._end(signal.SIGKILL)

    def restart(self, *, empty: bool = False, graceful: bool = False) -> None:
        """End it and start it again on the same port, with or without its data."""
        self._end(signal.SIGINT if graceful else signal.SIGKILL)
        if empty:
            shutil.rmtree(self._data)
            self._make_data(None)
        self.start()

    def crash(self) -> None:
        """Kill one backend, after which PostgreSQL ends all others and recovers by itself."""
        before = self._recoveries()
        with self._connect() as connection:
            # The server tells no client why in time: this connection just ends.
            os.kill(connection.info.backend_pid, signal.SIGKILL)
            with suppress(psycopg.Error):
                connection.execute(b"select 1")
        # It still answers until it has noticed.
        give_up = time.monotonic() + START_WITHIN
        while self._recoveries() == before and time.monotonic() < give_up:
            time.sleep(0.01)
        self._wait_until_it_answers()

    def _recoveries(self) -> int:
        return self.log.count("all server processes terminated; reinitializing")

    def freeze(self) -> None:
        """Stop all its processes; clients find a server that takes bytes and says nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        self._signal_children(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_children(signal.SIGCONT)
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it for good and remove its folder."""
        self._end(signal.SIGQUIT)
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

    def _make_data(self, copy_of: PostgresServer | None) -> None:
        if copy_of is None:
            copy(_template(), self._data)
        else:
            source = ["-h", str(copy_of.socket_folder), "-p", str(copy_of.port), "-U", "postgres"]
            goal = ["-D", str(self._data), "-R", "-X", "stream", "-c", "fast", "--no-sync"]
            run([program("pg_basebackup"), *source, *goal])
        method = "scram-sha-256" if self.password else "trust"
        (self._data / "pg_hba.conf").write_text(
            f"local all,replication all trust\nhost all,replication all 127.0.0.1/32 {method}\n"
        )

    def _copy_tls(self, tls: TlsFiles) -> list[str]:
        for source, name in ((tls.cert, "server.crt"), (tls.key, "server.key")):
            shutil.copy(source, self._folder / name)
            give_away(self._folder / name)
            (self._folder / name).chmod(0o600)
        crt, key = self._folder / "server.crt", self._folder / "server.key"
        return ["ssl=on", f"ssl_cert_file={crt}", f"ssl_key_file={key}"]

    def _arguments(self) -> list[str]:
        where = ["-D", str(self._data), "-p", str(self.port), "-k", str(self._folder)]
        settings = [*SETTINGS, *self._tls_options, *self.options]
        return [*where, *(word for setting in settings for word in ("-c", setting))]

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
                raise ServerFailed(f"postgres ended at once:\n{self.log}")
            with suppress(psycopg.OperationalError):
                self.psql("select 1")
                return
            time.sleep(0.02)
        raise ServerFailed(f"postgres gave no answer in {START_WITHIN} s:\n{self.log}")

    def _connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(
            host=str(self._folder),
            port=self.port,
            user="postgres",
            dbname=database,
            autocommit=True,
            connect_timeout=5,
            application_name="operator",
        )

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerFailed("the server is not running")
        return self._process

    def _signal_children(self, how: signal.Signals) -> None:
        _signal_all(children(self.pid), how)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        process = self._process
        backends = list(children(process.pid))
        process.send_signal(how)
        if how is signal.SIGKILL:
            # Those that were its children: they are init's by now.
            _signal_all(backends, how)
        else:
            # A frozen server takes other signals only once it runs again.
            self.thaw()
        self._process = None
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        wait_until_gone(backends)


def _signal_all(pids: Iterable[int], how: signal.Signals) -> None:
    # Every backend is a session of its own, so there is no process group to signal.
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, how)


class PgBouncer:
    """A pgbouncer before a server; `options` are lines such as `["default_pool_size=1"]`."""

    def __init__(
        self,
        server: PostgresServer,
        pool_mode: str = "transaction",
        options: Sequence[str] = (),
        users: Iterable[str] = ("postgres",),
    ) -> None:
        self._server = server
        self._folder = private_folder()
        self.port = free_port()
        self._write(pool_mode, options, users)
        with (self._folder / "log").open("ab") as log:
            self._process = start([program("pgbouncer"), str(self._folder / "ini")], log)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres") -> str:
        return self._server.url_of(database, user, port=self.port)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self.kill()
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

    def _write(self, pool_mode: str, options: Sequence[str], users: Iterable[str]) -> None:
        secret = self._server.password or ""
        accounts = "".join(f'"{user}" "{secret}"\n' for user in users)
        (self._folder / "users").write_text(accounts)
        lines = [
            f"[databases]\n* = host=127.0.0.1 port={self._server.port}",
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}",
            f"unix_socket_dir =\nauth_type = trust\nauth_file = {self._folder / 'users'}",
            f"pool_mode = {pool_mode}\n",
        ]
        (self._folder / "ini").write_text("\n".join([*lines, *options, ""]))

    def _wait_until_it_answers(self) -> None:
        give_up = time.monotonic() + START_WITHIN
        while time.monotonic() < give_up:
            if self._process.poll() is not None:
                raise ServerFailed(f"pgbouncer ended at once:\n{self.log}")
            with suppress(psycopg.OperationalError), psycopg.connect(self.url, autocommit=True):
                return
            time.sleep(0.02)
        raise ServerFailed(f"pgbouncer gave no answer in {START_WITHIN} s:\n{self.log}")


def _template() -> Path:
    """A data folder that is copied: a copy takes a tenth of the time.

    It is small: what nobody uses would be a half of it.
    """
    return once_a_run("data", _make_template)


def _make_template(data: Path) -> None:
    data.mkdir()
    give_away(data)
    how = ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"]
    run([program("initdb"), "-D", str(data), *how, "--wal-segsize=1"])
    single: list[str | Path] = [program("postgres"), "--single", "-D", str(data), "template1"]
    run(single, "alter database template0 is_template false\ndrop database template0\n")
