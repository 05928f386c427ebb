"""Reads command-line options: lock settings, times, CMD, numbers, health pages."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from incumbent.cli.parser import CommandRequest, flag_of
from incumbent.cli.text import say
from incumbent.errors import ConfigError
from incumbent.locks.options import LockSettings
from incumbent.policy import TTL_DEFAULT, Policy, make_policy
from incumbent.serve.health import start_health
from incumbent.serve.situation import Situation
from incumbent.stores.names import check_slot
from incumbent.stores.url import store_url
from incumbent.supervise.run import Command

if TYPE_CHECKING:
    from incumbent.serve.pages import Routes
    from incumbent.supervise.news import TermNews

_SLOT_KEPT = "30d"


def lock_settings(request: CommandRequest) -> LockSettings:
    """The lock's settings in the request, unchecked: the lock checks them."""
    settings: LockSettings = {
        "grace": request.text("grace"),
        "holder": request.text("holder"),
        "once_per": request.text("once_per"),
        "at_most_for": request.text("at_most_for"),
        "at_least_for": request.text("at_least_for"),
    }
    if request.on("fair"):
        settings["fair"] = True
    if (ttl := request.text("ttl")) is not None:
        settings["ttl"] = ttl
    if (delay := request.text("lock_delay")) is not None:
        settings["lock_delay"] = delay
    if (slot := request.text("slot")) is not None:
        settings["slot"] = check_slot(slot)
        # A caller that names a slot wants it to run once, for as long as stores keep slots.
        settings["once_per"] = settings["once_per"] or _SLOT_KEPT
    return settings


def policy_of(request: CommandRequest) -> Policy:
    """The times that follow from the options. Raises ConfigError, which shows the numbers."""
    ttl, delay = request.text("ttl"), request.text("lock_delay") or 0.0
    grace = request.text("grace")
    return make_policy(TTL_DEFAULT if ttl is None else ttl, grace=grace, lock_delay=delay)


def number(request: CommandRequest, dest: str, least: int, most: int, default: int) -> int:
    """The number that was given for an option, else `default`. Raises ConfigError."""
    text = request.text(dest)
    if text is None:
        return default
    plain = text.isascii() and text.isdecimal() and len(text) < 10
    if not plain or not least <= int(text) <= most:
        message = f"{flag_of(dest)}={text[:40]!r}: a number from {least} to {most}"
        raise ConfigError(message, name=dest)
    return int(text)


def cmd_of(request: CommandRequest, url: str) -> Command:
    """CMD; with `--share-store` it gets `url` as its store."""
    return Command(request.words, url if request.on("share_store") else None)


def news_of(request: CommandRequest, log: Callable[[str], None]) -> TermNews | None:
    """What is to be told to whom; None for nothing. `log` gets failures. Raises ConfigError."""
    if not {"notify", "ping", "ping_every"} & request.values.keys():
        return None
    # Loaded only here: a command that tells nobody starts sooner without it.
    from incumbent.cli.receivers import news_from

    return news_from(request, (lambda _: None) if request.on("quiet") else log)


@contextmanager
def health(request: CommandRequest, situation: Situation) -> Iterator[None]:
    """Report `situation` to systemd, and on pages if `--listen` is given, until the block ends."""
    listen, token_file = request.text("listen"), request.text("token_file")
    with ExitStack() as stack:
        try:
            routes = _page(request, stack) if listen is not None else {}
            pages = start_health(
                situation,
                listen=listen,
                token_file=token_file,
                user_header=request.text("user_header"),
                routes=routes,
            )
            url = stack.enter_context(pages)
        except ConfigError as error:
            if not _is_inherited_listen(request, error):
                raise
            if not request.on("quiet"):
                say(f"{request.name}: no pages of this run: {error}")
            url = stack.enter_context(start_health(situation))
        if listen is not None and listen.endswith(":0"):
            say(f"listening on {url}")
        yield


def _page(request: CommandRequest, stack: ExitStack) -> Routes:
    """The page about the store; none for jobs of a module, which may have another store."""
    named = request.text("store")
    of_module = named is None and request.command == "cron" and ":" in request.name
    # The page would open a memory: store of its own, without our leases.
    if of_module or (named or "").startswith("memory:"):
        return {}
    from incumbent.page.site import PageSite

    site = stack.enter_context(closing(PageSite(store_url(named), request.namespace)))
    return site.routes()


def _is_inherited_listen(request: CommandRequest, error: ConfigError) -> bool:
    """Whether a `run` has only inherited its `--listen`, and another process has the port."""
    # The variable is for the main process of a container; other processes there inherit it.
    used = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
    inherited = request.text("listen") == os.environ.get("INCUMBENT_LISTEN")
    return request.command == "run" and used and inherited
