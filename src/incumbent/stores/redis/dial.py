"""Making a blocking connection without ever waiting longer than was allowed.

Name resolution has no timeout, and those of TCP, TLS and AUTH add up, so all of it happens on a
helper thread; whoever asked waits for as long as there is time, and a late connection is closed.
"""

from __future__ import annotations

import socket
import threading
from typing import Any

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.stores.redis.driver import Site, Target, blocking_connection, connect_error
from incumbent.unpatched import original

__all__ = ["dial"]

_LONGEST = 3600.0


class _Attempt:
    def __init__(self, target: Target, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._lock = threading.Lock()
        self._abandoned = False
        self.done = threading.Event()
        self.sock: socket.socket | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Connect and log in."""
        connection = None
        try:
            connection = blocking_connection(self._target, self._timeout)
            connection.connect()
            self._finish(_taken_from(connection))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            self.error = error
            if connection is not None:
                connection.disconnect()
        self.done.set()

    def _finish(self, sock: socket.socket) -> None:
        with self._lock:
            self.sock = sock
            if self._abandoned:
                sock.close()

    def abandon(self) -> None:
        """Nobody waits any more."""
        with self._lock:
            self._abandoned = True
            if self.sock is not None:
                self.sock.close()


def _taken_from(connection: Any) -> socket.socket:
    """The connection's socket, which from here on is ours alone."""
    sock: socket.socket = connection._sock
    connection._sock = None
    connection._parser.on_disconnect()
    return _of_any_thread(sock)


def _of_any_thread(sock: socket.socket) -> socket.socket:
    """gevent's sockets belong to the hub of one thread; this one is also used by the keeper's."""
    if not type(sock).__module__.startswith("gevent._socket"):
        return sock
    plain: socket.socket = original("socket", "socket")(fileno=sock.detach())
    return plain


def dial(site: Site, until: float) -> socket.socket:
    """A socket that is connected and logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    left = min(_LONGEST, until - clock.now())
    if left <= 0:
        raise StoreUnavailable(f"{site.where}: no time is left to connect")
    attempt = _Attempt(site.target, left)
    try:
        _start(attempt)
        # Waiting in slices: a thread that was frozen with the machine must see the real clock.
        while not attempt.done.wait(min(1.0, max(0.0, until - clock.now()))):
            if clock.now() >= until:
                attempt.abandon()
                raise StoreUnavailable(f"{site.where} cannot be reached: no connection in time")
    except StoreUnavailable:
        raise
    except BaseException:
        attempt.abandon()
        raise
    if attempt.sock is None:
        error = attempt.error or OSError("no connection")
        raise connect_error(error, site) from error
    return attempt.sock


def _start(attempt: _Attempt) -> None:
    try:
        threading.Thread(target=attempt.run, name="incumbent-dial", daemon=True).start()
    except RuntimeError:
        # The interpreter is ending and starts no threads any more: better late than leaving keys.
        attempt.run()
