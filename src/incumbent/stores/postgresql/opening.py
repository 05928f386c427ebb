"""From a URL, or a pool of the user's own, to an engine. Imports the drivers only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from incumbent.durations import Duration
from incumbent.errors import ConfigError
from incumbent.stores.postgresql.options import (
    check_restart_wait,
    check_waits,
    parse_postgresql_url,
)

if TYPE_CHECKING:
    from incumbent.stores.postgresql.engine import PostgresEngine

__all__ = ["engine_from_object", "open_postgresql"]


def open_postgresql(url: str, password: str | None = None) -> PostgresEngine:
    """The engine of a URL; `password` replaces the one in it. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or a missing driver.
    """
    options = parse_postgresql_url(url, password)
    # The driver first: where it is missing, it says what to install.
    from incumbent.stores.postgresql.driver import site_of_options
    from incumbent.stores.postgresql.engine import PostgresEngine

    return PostgresEngine(site_of_options(options))


def engine_from_object(
    given: Any, *, restart_wait: Duration | None = None, wait: str = "auto"
) -> PostgresEngine:
    """The engine for a psycopg_pool pool or a SQLAlchemy engine, blocking or asynchronous.

    Its address and login are taken over for connections of our own, on both sides; the object
    itself is neither used nor closed, so what it does when it connects (a `configure` function, an
    event) does not happen here. The other arguments are those of the URL's options. Raises
    ConfigError for anything else.
    """
    from incumbent.stores.postgresql.driver import site_of_parameters
    from incumbent.stores.postgresql.engine import PostgresEngine

    parameters = _of_pool(given) if hasattr(given, "conninfo") else _of_sqlalchemy(given)
    site = site_of_parameters(
        parameters,
        _shown(parameters),
        restart_wait=check_restart_wait(restart_wait),
        waits=check_waits(wait),
    )
    return PostgresEngine(site)


_NOT_LIBPQ: Final = (
    *("autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"),
    *("target_session_attrs", "client_encoding"),
)


def _of_pool(pool: Any) -> dict[str, Any]:
    from psycopg.conninfo import conninfo_to_dict

    conninfo, more = pool.conninfo, pool.kwargs or {}
    if not isinstance(conninfo, str) or not isinstance(more, dict):
        raise ConfigError(
            f"a {type(pool).__name__} whose address is computed: give a URL", name="store"
        )
    known = {name: value for name, value in more.items() if name not in _NOT_LIBPQ}
    return dict(conninfo_to_dict(conninfo, **known))


_SQLALCHEMY: Final = {"database": "dbname", "username": "user"}


def _of_sqlalchemy(engine: Any) -> dict[str, Any]:
    url = getattr(engine, "url", None)
    if url is None or getattr(engine.dialect, "name", "") != "postgresql":
        raise ConfigError(
            f"a {type(engine).__name__} object: give a psycopg_pool.ConnectionPool or"
            " AsyncConnectionPool, or an Engine or AsyncEngine of SQLAlchemy for postgresql",
            name="store",
        )
    _, arguments = engine.dialect.create_connect_args(url)
    from incumbent.stores.postgresql.driver import pq

    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    named = {_SQLALCHEMY.get(name, name): value for name, value in arguments.items()}
    return {name: it for name, it in named.items() if name in known and name not in _NOT_LIBPQ}


def _shown(parameters: dict[str, Any]) -> str:
    user, secret = parameters.get("user") or "", parameters.get("password")
    login = f"{user}:***@" if secret else f"{user}@" if user else ""
    hosts = str(parameters.get("host") or "").split(",")
    ports = str(parameters.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(
        f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)
    )
    return f"postgresql://{login}{where}/{parameters.get('dbname') or ''}"
