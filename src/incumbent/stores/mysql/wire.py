"""One connection, by PyMySQL: several statements at once, and their answers in time."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from incumbent import clock
from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.dial import connect, connect_unix
from incumbent.net.driver import DriverSocket, Upgrade
from incumbent.net.pool import Broken
from incumbent.stores.mysql.errors import ServerError
from incumbent.stores.mysql.site import MysqlSite
from incumbent.stores.url import Endpoint

try:
    import pymysql
    from pymysql.constants import CLIENT
except ImportError as error:
    raise ConfigError(
        "this store needs the extra mysql: pip install 'incumbent[mysql]' (PyMySQL>=1.2.1)",
        name="store",
    ) from error

_DRIVERS_OWN: Final = range(2000, 3000)
"""Errors that the driver raises by itself: the server has sent none."""
_GARBLED: Final = (struct.error, LookupError, AssertionError, ValueError, TypeError, RuntimeError)
"""What the driver raises for an answer that is none of MariaDB's or MySQL's."""


class Facts(NamedTuple):
    """A server's incarnation (instants in microseconds), and the limits of its requests.

    `ahead`: at least so far is its clock ahead of ours; `packet`: bytes of a request at most.
    """

    id: str = ""
    here: str = ""
    born: int = 0
    floor: int = 0
    ahead: int = 0
    packet: int = 1 << 16

    def on_its_clock(self, instant: float) -> int:
        """An instant of incumbent.clock.now, or a little less."""
        return int(instant * 1e6) + self.ahead


class Reply(NamedTuple):
    """The server's answer to one statement."""

    affected: int
    insert_id: int
    rows: Sequence[tuple[Any, ...]]


class MysqlWire:
    """See pooled_registers.PooledConnection."""

    facts, longest = Facts(), 0

    def __init__(self, site: MysqlSite, host: Endpoint, until: float) -> None:
        """Connect and log in. Raises OSError, Broken, ServerError."""
        self.looked = clock.now()
        self.closed, self.unfinished = False, True
        path = site.unix_socket
        sock = connect_unix(path, until) if path else connect(host.host, host.port, until)
        self._socket = DriverSocket(sock, until)
        context = site.tls.context() if site.tls else None
        self._connection = pymysql.connections.Connection(
            host=host.host,
            user=site.user,
            password=site.password.encode(),
            database=site.database,
            charset="utf8mb4",
            # The handshake sets it, and finds out whether it is set.
            autocommit=None,
            client_flag=CLIENT.MULTI_STATEMENTS,
            program_name="incumbent",
            ssl=context,
            ssl_disabled=context is None,
            defer_connect=True,
        )
        upgrade = self._connection.ctx = Upgrade(context) if context else None
        with _translated(in_doubt=False):
            self._connection.connect(self._socket)
        self._socket = (upgrade and upgrade.upgraded) or self._socket
        self.encrypted, self.unfinished = upgrade is not None, False

    def is_stale(self, *, trust: bool) -> bool:
        return self.closed or self._socket.is_stale(trust=trust)

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    # The socket alone, and no word to the server: for the parent the session goes on.
    detach = close

    def quoted(self, statement: str, *values: Any) -> str:
        """The statement with the values for its %s."""
        return str(self._connection.cursor().mogrify(statement, values))

    def ask(self, statements: str, until: float, *, in_doubt: bool) -> list[Reply]:
        """The answers to all statements, which are sent at once. Raises Broken, ServerError.

        `in_doubt`: if no answer comes, something may have been changed that matters.
        """
        try:
            size = len(statements.encode())
        except UnicodeEncodeError as error:
            raise StoreUnavailable(f"a text is not in UTF-8: {error}", permanent=True) from error
        # Before it is sent: the server would cut the connection, and what it did would be in doubt.
        if size >= self.facts.packet:
            said = f"{size} bytes, and max_allowed_packet is {self.facts.packet}"
            raise ServerError(1153, said, in_doubt=False)
        self._socket.begin(until)
        self.unfinished = True
        with _translated(in_doubt=in_doubt):
            # Until its last answer is read, the next request would get what is left of this one's.
            cursor = self._connection.cursor()
            cursor.execute(statements)
            replies = [Reply(cursor.rowcount, cursor.lastrowid, cursor.fetchall())]
            while cursor.nextset():
                replies.append(Reply(cursor.rowcount, cursor.lastrowid, cursor.fetchall()))
        self.unfinished = False
        return replies


@contextmanager
def _translated(*, in_doubt: bool) -> Iterator[None]:
    """Errors of the driver become ServerError or Broken."""
    earlier = sys.exc_info()[1]
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise_if_from_signal(error)
        # The driver has an error of its own for each OSError, also for that of a signal handler.
        if error.__context__ is not None and error.__context__ is not earlier:
            raise_if_from_signal(error.__context__)
        code, text = (*error.args, "", "")[:2]
        if isinstance(code, int) and code and code not in _DRIVERS_OWN:
            raise ServerError(code, str(text), in_doubt=in_doubt) from error
        raise Broken(str(text or code or error), sent=in_doubt) from error
    except Broken as error:
        raise Broken(str(error), sent=in_doubt and error.sent, late=error.late) from error
    except _GARBLED as error:
        raise_if_from_signal(error)
        raise Broken(f"it gave no usable answer: {error!r}", sent=in_doubt) from error
