"""Starts whatever is to tell how this instance is: pages, a status file, systemd."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from math import inf
from typing import Protocol

from incumbent.cli.exits import say
from incumbent.errors import ConfigError
from incumbent.serve.pages import Page, answer
from incumbent.serve.situation import Situation, View

__all__ = ["Health", "start_health"]

_log = logging.getLogger("incumbent")

_PATIENCE = 2.0


class Reporter(Protocol):
    """Is told at each change, and at least every `every` seconds."""

    every: float

    def tell(self, view: View) -> None:
        """Report the view; never raises."""

    def close(self, view: View) -> None:
        """Report the end."""


class Health:
    """What runs. `url`: where the pages are, or None."""

    def __init__(self) -> None:
        self.url: str | None = None


@contextmanager
def start_health(
    situation: Situation,
    *,
    listen: str | None = None,
    public: bool = False,
    token_file: str | None = None,
    status_file: str | None = None,
    tell: Callable[[str], None] = say,
) -> Iterator[Health]:
    """Report `situation` until the block ends, which counts as stopping.

    `listen`: HOST:PORT; `public`, `token_file`: see `address.require_guarded`; `tell` gets the line
    with the address when the system chose the port. Raises ConfigError for settings that cannot
    work, before anything was started.
    """
    if listen is None and (public or token_file is not None):
        raise ConfigError("--listen-public and --token-file need --listen", name="listen")
    health = Health()
    with ExitStack() as stack:
        if listen is not None:
            health.url = _serve(stack, situation, listen, public, token_file)
            if listen.endswith(":0"):
                tell(f"listening on {health.url}")
        reporters = _reporters(situation, status_file)
        if reporters:
            stack.callback(_Ticker(situation, reporters).close)
        try:
            yield health
        finally:
            situation.stopping()


def _serve(
    stack: ExitStack, situation: Situation, listen: str, public: bool, token_file: str | None
) -> str:
    # Not at the top: who does not listen need not load an HTTP server.
    from incumbent.serve.address import parse_address, read_secret, require_guarded
    from incumbent.serve.http import PageServer

    address = parse_address(listen)
    require_guarded(address, public=public, token_file=token_file)
    secret = None if token_file is None else read_secret(token_file)

    def page(path: str) -> Page:
        return answer(path, situation.look(), _version())

    server = PageServer(address, page, secret)
    stack.callback(server.close)
    return server.url


def _reporters(situation: Situation, status_file: str | None) -> list[Reporter]:
    reporters: list[Reporter] = []
    if status_file is not None:
        from incumbent.serve.status_file import StatusFile

        reporters.append(StatusFile(status_file, situation.look()))
    if "NOTIFY_SOCKET" in os.environ:
        from incumbent.serve.systemd import systemd_from

        if (systemd := systemd_from(os.environ)) is not None:
            reporters.append(systemd)
    return reporters


class _Ticker:
    """The thread that tells the reporters."""

    def __init__(self, situation: Situation, reporters: list[Reporter]) -> None:
        self._situation = situation
        self._reporters = reporters
        self._every = min((reporter.every for reporter in reporters), default=inf)
        self._wake = threading.Event()
        self._ended = False
        situation.on_change(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="incumbent-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The last report; a disk that hangs is not waited for."""
        self._ended = True
        self._wake.set()
        self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while not self._ended:
            self._each(lambda reporter, view: reporter.tell(view))
            self._wake.wait(self._every)
            self._wake.clear()
        self._each(lambda reporter, view: reporter.close(view))

    def _each(self, report: Callable[[Reporter, View], None]) -> None:
        for reporter in self._reporters:
            try:
                report(reporter, self._situation.look())
            except Exception:  # noqa: BLE001 - whatever it was, the others still report
                _log.exception("a report of this instance's health failed")


@cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("incumbent")
    except PackageNotFoundError:
        return "unknown"
