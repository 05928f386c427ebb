"""From a URL, or a pool of the user's own, to an engine. Imports the driver only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from incumbent.durations import Duration
from incumbent.stores.postgresql.url import read_url
from incumbent.stores.url import parse_restart_wait

if TYPE_CHECKING:
    from incumbent.stores.postgresql.engine import PostgresEngine


def open_postgresql(url: str, password: str | None = None) -> PostgresEngine:
    """The engine of a URL; `password` replaces the one in it. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or a missing driver.
    """
    conninfo, restart_wait = read_url(url)
    from incumbent.stores.postgresql.engine import PostgresEngine
    from incumbent.stores.postgresql.libpq import site_of_url

    return PostgresEngine(site_of_url(conninfo, restart_wait, password))


def engine_from_object(given: Any, *, restart_wait: Duration | None = None) -> PostgresEngine:
    """The engine for a psycopg_pool pool or a SQLAlchemy engine, blocking or asynchronous.

    Its address and login are taken over for connections of our own, on both sides; the object
    itself is neither used nor closed, so what it does when it connects (a `configure` function, an
    event) does not happen here. `restart_wait` is the option of the URL. Raises ConfigError for
    anything else.
    """
    from incumbent.stores.postgresql.engine import PostgresEngine
    from incumbent.stores.postgresql.libpq import site_of_object

    return PostgresEngine(site_of_object(given, parse_restart_wait(restart_wait)))
