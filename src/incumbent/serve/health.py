"""Starts the HTTP pages and the notifications to systemd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from incumbent.errors import ConfigError
from incumbent.serve.situation import Situation

if TYPE_CHECKING:
    from incumbent.serve.pages import Routes

# Both are imported only where they are used: an instance that does not listen loads no asyncio.


@contextmanager
def start_health(
    situation: Situation,
    *,
    listen: str | None = None,
    token_file: str | None = None,
    routes: Routes | None = None,
    posts: Routes | None = None,
) -> Iterator[str | None]:
    """Report `situation` until the block ends, which counts as stopping.

    `listen`: HOST:PORT of the pages; the value of the block is their URL, or None. `token_file`:
    the file with the token that all pages but the probes ask for; beyond the loopback address only
    the probes are served without one. `routes`, `posts`: more pages, and those of POST. Raises
    ConfigError before anything is started if a setting cannot work.
    """
    if listen is None and token_file is not None:
        raise ConfigError("--token-file needs --listen", name="listen")
    with ExitStack() as stack:
        url = None
        if listen is not None:
            from incumbent.serve.http import PageServer
            from incumbent.serve.pages import routes_of

            pages = {**routes_of(situation), **(routes or {})}
            server = PageServer(pages, listen, token_file, posts)
            url = stack.enter_context(closing(server)).url
        if os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@")):
            from incumbent.serve.systemd import Notifier

            stack.enter_context(closing(Notifier(situation, os.environ)))
        try:
            yield url
        finally:
            situation.stopping()
