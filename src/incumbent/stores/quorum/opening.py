"""From a URL to an engine. Imports the drivers only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from incumbent.stores.quorum.options import parse_quorum_url

if TYPE_CHECKING:
    from incumbent.stores.quorum.engine import QuorumEngine

__all__ = ["open_quorum"]


def open_quorum(url: str, password: str | None = None) -> QuorumEngine:
    """The engine of a URL; `password` replaces the one in it. Connects to nothing.

    Raises ConfigError for a malformed URL, an even number of servers, an unknown option, or missing
    drivers.
    """
    options = parse_quorum_url(url, password)
    # The driver first: where it is missing, it says what to install.
    from incumbent.stores.quorum.engine import QuorumEngine
    from incumbent.stores.redis.driver import Site, target_of_options

    sites = [
        Site(target_of_options(it), it.shown, it.restart_wait, it.allow_eviction)
        for it in options.nodes
    ]
    return QuorumEngine(sites, options.shown, options.members, options.nodes[0].key)
