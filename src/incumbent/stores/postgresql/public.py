"""The public functions: an engine for a URL or a pool, and the check in a user's transaction.

The driver is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from incumbent.durations import Duration
from incumbent.errors import LeaseLost, Misuse
from incumbent.stores.names import flat
from incumbent.stores.url import parse_restart_wait

if TYPE_CHECKING:
    from incumbent.stores.postgresql.engine import PostgresEngine

_PSYCOPG: Final = "SELECT incumbent.fence(%s, %s)"
_SQLALCHEMY: Final = "SELECT incumbent.fence(:key, :token)"


def open_postgresql(url: str, password: str | None = None) -> PostgresEngine:
    """The engine for a URL; `password` replaces the URL's password. Opens no connection.

    Raises ConfigError for a malformed URL, an unknown option, or a missing driver.
    """
    from incumbent.stores.postgresql.engine import PostgresEngine
    from incumbent.stores.postgresql.site import site_of_url

    return PostgresEngine(site_of_url(url, password))


def engine_from_object(given: Any, *, restart_wait: Duration | None = None) -> PostgresEngine:
    """The engine for a psycopg_pool pool or a SQLAlchemy engine, blocking or asynchronous.

    The engine opens connections of its own, blocking or asynchronous, with the object's address and
    login. The object itself is neither used nor closed, so its actions on connecting (a `configure`
    function, an event) do not happen here. `restart_wait`: as the option of a URL. Raises
    ConfigError for any other object.
    """
    from incumbent.stores.postgresql.engine import PostgresEngine
    from incumbent.stores.postgresql.site import site_of_object

    return PostgresEngine(site_of_object(given, parse_restart_wait(restart_wait)))


# -- fencing --------------------------------------------------------------------------------------


def with_token(lease: Any, connection: Any) -> None:
    """Check, inside the open transaction, that no later holder has the lease.

    An earlier holder's transaction fails instead of writing.

    `connection` is a psycopg Connection, or a Connection or Session of SQLAlchemy, to the database
    of the lease's store; its role needs the rights that schema.sql names. Call it in the
    transaction, before or after the other statements. It waits until every transaction of an
    earlier holder that passed this check is over; from then on the check refuses earlier holders.
    Raises LeaseLost (also if the lease is not proved any more): roll back then. Raises Misuse
    outside of a transaction, where it would protect nothing.
    """
    lease.check()
    if _is_psycopg(connection):
        _check_psycopg(connection)
        row = connection.execute(_PSYCOPG, _arguments(lease)).fetchone()
        _raise_if_stale(lease, row[0])
        return
    _check_sqlalchemy(connection)
    _raise_if_stale(lease, connection.execute(*_statement(lease)).scalar())


async def async_with_token(lease: Any, connection: Any) -> None:
    """`with_token` for psycopg's AsyncConnection, SQLAlchemy's AsyncConnection and AsyncSession."""
    lease.check()
    if _is_psycopg(connection):
        _check_psycopg(connection)
        cursor = await connection.execute(_PSYCOPG, _arguments(lease))
        _raise_if_stale(lease, (await cursor.fetchone())[0])
        return
    await connection.run_sync(_check_sqlalchemy)
    _raise_if_stale(lease, (await connection.execute(*_statement(lease))).scalar())


def _is_psycopg(connection: Any) -> bool:
    return any(base.__module__.split(".")[0] == "psycopg" for base in type(connection).__mro__)


def _arguments(lease: Any) -> tuple[str, int]:
    # A lease shows its name only; its key has the namespace too.
    return flat(lease.belief.key), lease.fencing_token


def _statement(lease: Any) -> tuple[Any, dict[str, Any]]:
    from sqlalchemy import text

    return text(_SQLALCHEMY), dict(zip(("key", "token"), _arguments(lease), strict=True))


def _check_psycopg(connection: Any) -> None:
    from psycopg.pq import TransactionStatus

    idle = connection.info.transaction_status == TransactionStatus.IDLE
    _require_transaction(not (idle and connection.autocommit))


def _check_sqlalchemy(connection: Any) -> None:
    pooled = connection.connection
    if callable(pooled):  # a method of a Session; a Connection has its pool's connection there
        pooled = pooled().connection
    _require_transaction(not getattr(pooled.dbapi_connection, "autocommit", False))


def _require_transaction(is_open: bool) -> None:
    if not is_open:
        raise Misuse(
            "with_token() on a connection in autocommit, outside of a transaction: its check would"
            " end before the next statement; begin a transaction first"
        )


def _raise_if_stale(lease: Any, may_write: Any) -> None:
    if may_write is not True:
        raise LeaseLost(
            f"the lease on {lease.name!r} is stale: a later holder than token {lease.fencing_token}"
            " was granted it; roll back",
            name=lease.name,
            reason="taken",
        )
