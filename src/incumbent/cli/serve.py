"""`serve`: shows the page about all leases and jobs of a namespace, and runs no work."""

from __future__ import annotations

import os
import signal
from contextlib import closing

from incumbent import clock
from incumbent.cli.parser import CommandRequest
from incumbent.cli.text import say
from incumbent.page.site import PageSite
from incumbent.serve.health import start_health
from incumbent.serve.http import PageServer
from incumbent.serve.pages import OPEN_PATHS, TEXT, Page
from incumbent.serve.situation import Situation
from incumbent.stores.names import make_key
from incumbent.stores.url import open_engine, store_url
from incumbent.supervise.codes import OK

_LISTEN = "127.0.0.1:8080"
_ENDING = (signal.SIGINT, signal.SIGTERM)
_TURN = 5.0
"""Seconds between two signs of life to systemd."""


def command(request: CommandRequest) -> int:
    make_key(request.namespace, "x")  # refuses a bad namespace now
    url = store_url(request.text("store"))
    # Raise errors of the URL here: later the page could only show them.
    open_engine(url)
    # Block the signals before threads start, because threads inherit the mask.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    with closing(PageSite(url, request.namespace)) as site:
        alive = dict.fromkeys(OPEN_PATHS, lambda _: Page(200, TEXT, "ok\n"))
        listen, token_file = request.text_or("listen", _LISTEN), request.text("token_file")
        user_header = request.text("user_header")
        pages = PageServer({**alive, **site.routes()}, listen, token_file, user_header)
        situation = Situation(request.namespace, "the page")
        # This instance is ready as soon as it listens: the page says whether the store answers.
        situation.note_answered()
        situation.note_serving(f"the page is at {pages.url}")
        with closing(pages), start_health(situation):
            say(f"the page is at {pages.url}")
            if not request.on("quiet"):
                say(pages.access)
            ended = _await_end(situation)
    return OK if ended == signal.SIGTERM else 128 + ended


def _await_end(situation: Situation) -> int:
    """Wait for the signal that ends `serve`; wake up meanwhile only for a service manager."""
    if "NOTIFY_SOCKET" not in os.environ:
        return signal.sigwait(_ENDING)
    while True:
        situation.pulse(clock.now() + _TURN)
        if (ended := signal.sigtimedwait(_ENDING, _TURN)) is not None:
            return ended.si_signo
