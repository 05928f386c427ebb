"""The check in the user's own transaction, on any database: a stale holder's writes never stay.

The row of the resource is locked until the transaction ends, so the writes of two holders have an
order: a later holder waits for an earlier one's open transaction, and older tokens then fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from typing import Any, Final

from incumbent.errors import Misuse
from incumbent.fencing.guards import Fenced, refused, resource_of, token_of

_CREATE: Final = (
    "CREATE TABLE incumbent_fencing"
    " (resource {} PRIMARY KEY, token BIGINT NOT NULL, writes BIGINT NOT NULL)"
)
# MySQL and MariaDB compare texts without case, accents and trailing blanks.
_MYSQL: Final = frozenset({"MySQLdb", "aiomysql", "asyncmy", "mariadb", "mysql", "pymysql"})
# `writes` changes in any case: some drivers count rows that changed, not rows that matched.
_UPDATE: Final = (
    "UPDATE incumbent_fencing SET token = ?, writes = writes + 1 WHERE resource = ? AND token <= ?"
)
_SELECT: Final = "SELECT token FROM incumbent_fencing WHERE resource = ?"
_INSERT: Final = "INSERT INTO incumbent_fencing (resource, token, writes) VALUES (?, ?, 1)"
_MARKS: Final = {
    "qmark": "?",
    "format": "%s",
    "pyformat": "%s",
    "numeric": ":{}",
    "named": ":{}",  # oracledb's style, which takes numbers too
}

_Run = Callable[..., Any]
"""Runs a statement with `?` for its values; returns its cursor or result."""


def create_table(connection: Any) -> None:
    """Make the table `incumbent_fencing`, once, as a migration would; commit it yourself.

    `connection` is as for `with_token`. Raises the driver's error if the table exists.
    """
    binary = _is_of_mysql(_driver_connection(connection))
    _runner(connection)(_CREATE.format("VARBINARY(255)" if binary else "VARCHAR(255)"))


def with_token(lease: Fenced, connection: Any, *, resource: str | None = None) -> None:
    """Raise an error in the transaction that is open on `connection` unless `lease` may write.

    Call it in the transaction, before its other statements. `connection` is a connection of a
    DB-API 2 driver (sqlite3, psycopg, PyMySQL, ...), or a Connection or Session of SQLAlchemy; if
    that is asynchronous: `await connection.run_sync(lambda c: with_token(lease, c))`. The table is
    made by `create_table`.

    Raises LeaseLost, also if the lease is not proved any more: roll back then. Raises Misuse in
    autocommit, where the check would end before the next statement, and if the driver does not tell
    whether that is so. Raises ConfigError, and the driver's own errors: if two first writers come
    at once, one gets IntegrityError and has to try again.
    """
    lease.check()
    name, token = resource_of(lease, resource), token_of(lease)
    run, driver = _runner(connection), _driver_connection(connection)
    key = name.encode() if _is_of_mysql(driver) else name
    # The update first: it locks the row, so that no later holder's token comes between check and
    # write.
    if not (_update_row(run, key, token) or _insert_row(run, key, token)):
        row = run(_SELECT, key).fetchone()
        raise refused(name, token, None if row is None else row[0])
    # Some drivers begin a transaction with the first write, so it can be seen only now.
    if not _in_transaction(driver):
        raise Misuse(
            "with_token() on a connection in autocommit, outside of a transaction, or of a driver"
            " that does not tell: its check is over before the next statement; begin a transaction"
            " first"
        )


def _update_row(run: _Run, name: str | bytes, token: int) -> bool:
    passed = run(_UPDATE, token, name, token).rowcount
    if passed not in (0, 1):
        raise Misuse(f"with_token() needs a driver that counts rows; this one says {passed}")
    return bool(passed)


def _insert_row(run: _Run, name: str | bytes, token: int) -> bool:
    if run(_SELECT, name).fetchone() is None:
        run(_INSERT, name, token)
        return True
    # Another writer may have inserted it between our two statements: it is not locked yet.
    return _update_row(run, name, token)


def _runner(connection: Any) -> _Run:
    if hasattr(connection, "get_bind") or hasattr(connection, "exec_driver_sql"):
        return lambda sql, *values: _run_sqlalchemy(connection, sql, values)
    if hasattr(connection, "cursor"):
        return lambda sql, *values: _run_dbapi(connection, sql, values)
    raise Misuse(
        "with_token() takes a connection of a DB-API 2 driver or of SQLAlchemy, not"
        f" {type(connection).__name__}"
    )


def _run_sqlalchemy(connection: Any, sql: str, values: tuple[Any, ...]) -> Any:
    from sqlalchemy import text

    names = [f"v{place}" for place in range(len(values))]
    return connection.execute(
        text(_with_marks(sql, ":v{}", start=0)), dict(zip(names, values, strict=True))
    )


def _run_dbapi(connection: Any, sql: str, values: tuple[Any, ...]) -> Any:
    style = _paramstyle(connection)
    cursor = connection.cursor()
    cursor.execute(_with_marks(sql, _MARKS[style], start=1), values)
    return cursor


def _paramstyle(connection: Any) -> str:
    """The `paramstyle` of the driver's module (PEP 249), which says how values are marked."""
    for base in type(connection).__mro__:
        style = getattr(sys.modules.get(base.__module__.partition(".")[0]), "paramstyle", None)
        if style in _MARKS:
            return str(style)
    raise Misuse(
        f"with_token() cannot tell how {type(connection).__module__} marks its values; pass a"
        " connection of SQLAlchemy"
    )


def _with_marks(sql: str, mark: str, *, start: int) -> str:
    places = count(start)
    return "".join(mark.format(next(places)) if part == "?" else part for part in sql)


def _driver_connection(connection: Any) -> Any:
    pooled = getattr(connection, "connection", None)
    if callable(pooled):  # a Session's method, where a Connection has its pool's connection
        pooled = pooled().connection
    # Not `dbapi_connection`: that of an asynchronous driver hides whether it is in a transaction.
    return getattr(pooled, "driver_connection", None) or connection


def _is_of_mysql(driver: Any) -> bool:
    return any(base.__module__.partition(".")[0] in _MYSQL for base in type(driver).__mro__)


def _in_transaction(driver: Any) -> bool:
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    if status is not None:  # of psycopg, where 0 is idle
        return int(status) != 0
    if hasattr(driver, "in_transaction"):  # sqlite3, aiosqlite
        return bool(driver.in_transaction)
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    if getattr(driver, "server_status", 0) & 1:  # PyMySQL, after begin() in autocommit too
        return True
    autocommit = getattr(driver, "get_autocommit", None) or getattr(driver, "autocommit", True)
    return not (autocommit() if callable(autocommit) else autocommit)
