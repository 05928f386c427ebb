"""From a URL, or a pool of the user's own, to an engine. Imports the driver only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from incumbent.durations import Duration
from incumbent.stores.postgresql.url import check_restart_wait, parse_postgresql_url

if TYPE_CHECKING:
    from incumbent.stores.postgresql.engine import PostgresEngine

__all__ = ["engine_from_object", "open_postgresql"]


def open_postgresql(url: str, password: str | None = None) -> PostgresEngine:
    """The engine of a URL; `password` replaces the one in it. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or a missing driver.
    """
    options = parse_postgresql_url(url, password)
    from incumbent.stores.postgresql.engine import PostgresEngine
    from incumbent.stores.postgresql.libpq import site_of_options

    return PostgresEngine(site_of_options(options))


def engine_from_object(given: Any, *, restart_wait: Duration | None = None) -> PostgresEngine:
    """The engine for a psycopg_pool pool or a SQLAlchemy engine, blocking or asynchronous.

    Its address and login are taken over for connections of our own, on both sides; the object
    itself is neither used nor closed, so what it does when it connects (a `configure` function, an
    event) does not happen here. `restart_wait` is the option of the URL. Raises ConfigError for
    anything else.
    """
    from incumbent.stores.postgresql.engine import PostgresEngine
    from incumbent.stores.postgresql.libpq import site_of_object

    return PostgresEngine(site_of_object(given, check_restart_wait(restart_wait)))
