"""The receivers that a request names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from incumbent.cli.parser import CommandRequest
from incumbent.durations import parse_duration
from incumbent.errors import ConfigError
from incumbent.notify.outbox import LINGER, read_secrets
from incumbent.notify.receivers import Receiver, parse_ping, parse_receiver
from incumbent.stores.url import read_secret
from incumbent.supervise.news import TermNews

_EVERY: Final = "60s"
_LINGER_RUN: Final = 5.0
"""LINGER for a `run`, which has no later moment to send; its lease is given back before."""


def webhook_of(request: CommandRequest) -> Receiver | None:
    """The receiver of `--notify`. Raises ConfigError, also if there is no secret to sign with."""
    text = _url(request, "notify")
    if text is None:
        return None
    receiver = parse_receiver(text, "notify")
    read_secrets()
    return receiver


def news_from(request: CommandRequest, log: Callable[[str], None]) -> TermNews:
    """What `--notify` and `--ping` ask for. Raises ConfigError."""
    ping = _url(request, "ping")
    if request.text("ping_every") is not None and ping is None:
        raise ConfigError("ping_every is about pings: add --ping", name="ping_every")
    return TermNews(
        webhook_of(request),
        None if ping is None else parse_ping(ping, "ping"),
        parse_duration(request.text_or("ping_every", _EVERY), "ping_every", least=1, most=86_400),
        _LINGER_RUN if request.command == "run" else LINGER,
        log,
    )


def _url(request: CommandRequest, dest: str) -> str | None:
    """The URL that was given; `@FILE` keeps it out of the list of processes."""
    text = request.text(dest)
    return read_secret(text[1:], dest).strip() if text and text[0] == "@" else text
