"""Tells systemd how it goes (Type=notify): datagrams as sd_notify(3) documents them.

READY=1 once the store answered or we stand by, STATUS= at changes, WATCHDOG=1 only while /healthz
would be 200, STOPPING=1 at the end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from math import inf

from incumbent.serve.pages import summary
from incumbent.serve.situation import View

__all__ = ["Systemd", "systemd_from"]


class Systemd:
    """`address`: NOTIFY_SOCKET; `alive_every`: seconds between signs of life, inf for none."""

    def __init__(self, address: str, alive_every: float = inf) -> None:
        # systemd writes the NUL byte of an abstract name as "@".
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # A full queue must not stop us: what matters is said again with the next tick.
        self._socket.setblocking(False)
        self._alive_every = alive_every
        self._said = ""
        self._ready = self._stopping = False
        self.every = min(alive_every, 5.0)
        """Seconds between ticks when nothing changes."""

    def tell(self, view: View) -> None:
        """Say what systemd does not know yet."""
        if not self._ready and view.role != "stopping" and _is_up(view):
            self._ready = self._send("READY=1")
        if not self._stopping and view.role == "stopping":
            self._stopping = self._send("STOPPING=1")
        line = summary(view)
        if line != self._said and self._send(f"STATUS={line}"):
            self._said = line
        if self._alive_every < inf and view.healthy:
            self._send("WATCHDOG=1")

    def close(self, view: View) -> None:
        """The last words."""
        self.tell(view)
        self._socket.close()

    def _send(self, line: str) -> bool:
        try:
            self._socket.sendto(line.encode(), self._address)
        except OSError:
            return False
        return True


def _is_up(view: View) -> bool:
    return view.unheard_for < inf or view.role in ("standby", "leading")


def systemd_from(environ: Mapping[str, str]) -> Systemd | None:
    """The service manager that started this process, if it wants to be told.

    WATCHDOG_USEC (sd_watchdog_enabled(3)) is ignored if WATCHDOG_PID names another process.
    """
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return None
    micros = environ.get("WATCHDOG_USEC", "")
    meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    if meant and micros.isdecimal() and int(micros) > 0:
        return Systemd(address, int(micros) / 1_000_000 / 2)
    return Systemd(address)
