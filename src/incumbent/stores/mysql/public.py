"""The engine for a URL. The driver is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from incumbent.stores.mysql.engine import MysqlEngine


def open_mysql(url: str, password: str | None = None) -> MysqlEngine:
    """The engine for a URL; `password` replaces the URL's password. Opens no connection.

    Raises ConfigError for a malformed URL, an unknown option, or a missing driver.
    """
    from incumbent.stores.mysql.engine import MysqlEngine
    from incumbent.stores.mysql.site import site_of_url

    return MysqlEngine(site_of_url(url, password))
