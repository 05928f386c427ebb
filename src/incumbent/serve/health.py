"""Reports the state of this instance on pages, and to systemd (Type=notify) as sd_notify(3) says.

READY=1 once the store answered or this instance stands by, STATUS= at changes, WATCHDOG=1 only
while /healthz would answer 200, STOPPING=1 at the end.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from math import inf
from typing import TYPE_CHECKING, Final

from incumbent.errors import ConfigError
from incumbent.printable import printable
from incumbent.serve.situation import InstanceView, Situation

if TYPE_CHECKING:
    from incumbent.serve.pages import Routes


# The pages are imported only where they are used, so that other commands load no asyncio.


@contextmanager
def start_health(
    situation: Situation,
    *,
    listen: str | None = None,
    token_file: str | None = None,
    user_header: str | None = None,
    routes: Routes | None = None,
) -> Iterator[str | None]:
    """Report `situation` until the block ends; the end is reported as stopping.

    `listen`: HOST:PORT of the pages; the value of the block is their URL, or None. `token_file`:
    the file with the token that all pages but the probes require; without it only the probes are
    served beyond the loopback address. `user_header`: see PageServer. `routes`: more pages. Raises
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
            server = PageServer(pages, listen, token_file, user_header)
            url = stack.enter_context(closing(server)).url
        if os.environ.get("NOTIFY_SOCKET", "").startswith(("/", "@")):
            stack.enter_context(closing(SystemdNotifier(situation, os.environ)))
        try:
            yield url
        finally:
            situation.note_stopping()


# -- systemd ---------------------------------------------------------------------------------------


_EVERY: Final = 5.0
"""Seconds between attempts to send a notification that systemd has not taken yet."""


class SystemdNotifier:
    """Reports `situation` to the service manager of NOTIFY_SOCKET until it is closed."""

    def __init__(self, situation: Situation, environ: Mapping[str, str]) -> None:
        self._situation = situation
        # systemd writes the NUL byte of an abstract name as "@".
        self._address = re.sub("^@", "\0", environ["NOTIFY_SOCKET"])
        self._watchdog_every = _watchdog_every(environ)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # If systemd's queue is full, sending fails, and is tried again at the next turn.
        self._socket.setblocking(False)
        self._status = ""
        self._ready = self._stopping = self._closed = False
        self._wake = threading.Event()
        situation.on_change(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="incumbent-systemd", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report once more, then end."""
        # Before it is woken: it looks once more after it has read this.
        self._closed = True
        self._wake.set()
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while not self._closed:
            self._report(self._situation.view())
            self._wake.wait(min(self._watchdog_every, _EVERY))
            # Cleared before the next look: a change after that wakes again.
            self._wake.clear()
        self._report(self._situation.view())

    def _report(self, view: InstanceView) -> None:
        """Send the notifications that systemd has not taken yet, and the watchdog's."""
        # The store has answered once, or this instance has a role.
        may_be_ready = view.unanswered_for < inf or view.role in ("standby", "leading")
        if not self._ready and may_be_ready and view.role != "stopping":
            self._ready = self._send("READY=1")
        if not self._stopping and view.role == "stopping":
            self._stopping = self._send("STOPPING=1")
        line = summary(view)
        # A line break in the leader's name would begin another variable, such as MAINPID.
        if line != self._status and self._send(f"STATUS={printable(line)}"):
            self._status = line
        if self._watchdog_every < inf and view.healthy:
            self._send("WATCHDOG=1")

    def _send(self, line: str) -> bool:
        try:
            self._socket.sendto(line.encode("utf-8", "replace"), self._address)
        except OSError:
            return False
        return True


def _watchdog_every(environ: Mapping[str, str]) -> float:
    """Half of our watchdog's interval in seconds, sd_watchdog_enabled(3); inf if we have none."""
    micros = environ.get("WATCHDOG_USEC", "")
    for_us = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(micros) / 2_000_000 if for_us and micros.isdecimal() and int(micros) else inf


def summary(view: InstanceView) -> str:
    """The view in one line."""
    if view.role == "stopping":
        return f"stopping; {view.name} is still held" if view.leading else "stopping"
    if view.leading:
        return f"leading {view.name}, term {view.term}"
    if not view.store_up and view.role == "serving":
        return f"{view.doing}; the store gives no answer"
    if not view.store_up and view.role != "starting":
        return "no leader here: the store gives no answer"
    if view.role == "serving":
        return view.doing
    return _ROLES.get(view.role, view.role) + (f", led by {view.leader}" if view.leader else "")


_ROLES: Final = {
    "standby": "standing by",
    # Only after the proof has ended: `summary` has returned before if this instance still leads.
    "leading": "the lease is no longer proved, the work is being stopped",
    "backing_off": "standing again soon",
    "ended": "the term ended",
}
