"""Making a blocking connection: TCP or a unix socket, with TLS or without, within a deadline.

Each step waits with poll, up to one common deadline. No thread is needed, but for a name.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Callable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from incumbent import clock
from incumbent.net.names import resolve
from incumbent.unpatched import original

if TYPE_CHECKING:
    import ssl

_SLICE: Final = 1.0
"""Seconds of one poll; then our clock is asked again, which also counts suspend."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3))
"""A subscription gets nothing for hours: a host that vanished must be noticed all the same."""
_UNDER_WAY: Final = (errno.EINPROGRESS, getattr(errno, "WSAEWOULDBLOCK", errno.EINPROGRESS))
_NO_CONNECTION: Final = "no connection in time"

_now = clock.now


def connect(
    host: str, port: int, until: float, *, tls: ssl.SSLContext | None = None
) -> socket.socket:
    """A connection to the first address of `host` that accepts one; it does not block.

    With `tls` its certificate is checked against `host`. Raises OSError, at `until` at the latest.
    """
    failure = OSError("the name has no address")
    for address in resolve(host, port, until):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            sock = _connected(family, (address, port), until)
            return sock if tls is None else _secured(tls, sock, host, until)
        except OSError as error:
            failure = error
    raise failure


def connect_unix(path: str, until: float) -> socket.socket:
    """The same to a unix socket. Raises OSError, at `until` at the latest."""
    return _connected(socket.AF_UNIX, path, until)


def _connected(family: int, where: Any, until: float) -> socket.socket:
    # Not gevent's: its sockets belong to the hub of one thread, and the keeper's uses these too.
    sock: socket.socket = original("socket", "socket")(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family in (socket.AF_INET, socket.AF_INET6):
            tune(sock)
        code = sock.connect_ex(where)
        if code in _UNDER_WAY:
            if not wait_ready(sock, until, writing=True):
                raise TimeoutError(_NO_CONNECTION)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code), _shown(where))
        return sock
    except BaseException:
        sock.close()
        raise


def _shown(where: Any) -> str:
    return where if isinstance(where, str) else f"{where[0]}:{where[1]}"


def tune(sock: socket.socket) -> None:
    """Send small requests at once, and probe a silent connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _secured(
    context: ssl.SSLContext, sock: socket.socket, host: str, until: float
) -> ssl.SSLSocket:
    import ssl  # only where TLS is used: it takes 10 ms

    try:
        secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            try:
                secured.do_handshake()
                return secured
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                writing = isinstance(error, ssl.SSLWantWriteError)
                if not wait_ready(secured, until, writing=writing):
                    raise TimeoutError("no TLS handshake in time") from error
    except BaseException:
        secured.close()
        raise


def wait_ready(sock: socket.socket | int, until: float, *, writing: bool) -> bool:
    """Whether the socket became ready before `until`, or was closed by another thread.

    It may be a bare descriptor, such as libpq's.
    """
    while (left := until - _now()) > 0:
        if is_ready(sock, writing=writing, seconds=min(left, _SLICE)):
            return True
    return False


def is_ready(sock: socket.socket | int, *, writing: bool, seconds: float = 0) -> bool:
    """The same within `seconds`, by one system call."""
    if not isinstance(sock, int) and sock.fileno() < 0:
        return True
    if not hasattr(select, "poll"):
        reads, writes = ([], [sock]) if writing else ([sock], [])
        return any(select.select(reads, writes, [], seconds))
    poll = select.poll()
    poll.register(sock, select.POLLOUT if writing else select.POLLIN)
    # Up to the next millisecond: down would spin.
    return bool(poll.poll(ceil(seconds * 1000)))


def watch(*fds: int) -> Callable[[float], Sequence[int]]:
    """What waits for so many seconds, and returns which of them can be read."""
    if not hasattr(select, "poll"):
        return lambda seconds: select.select(fds, [], [], seconds)[0]
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    # Up to the next millisecond: down would spin.
    return lambda seconds: [fd for fd, _ in poll.poll(ceil(seconds * 1000))]


# -- connections that nobody closed ---------------------------------------------------------------

# The collector calls the finalizers of a cycle in any order, and a socket's own, if it comes first,
# warns that nobody closed it. Callbacks of weak references come before all finalizers.

_open: Final[dict[ref[Any], Callable[[], object]]] = {}
"""By what is referred to from here, a socket outlives its connection until it was closed."""


def close_with(wire: object, close: Callable[[], object]) -> None:
    """Call `close` when `wire` is collected. At the interpreter's end its `__del__` has to."""
    _open[ref(wire, _collected)] = close


def _collected(
    gone: ref[Any],
    # Bound here: at the interpreter's end the module's names go first.
    take: Callable[[ref[Any], None], Callable[[], object] | None] = _open.pop,
) -> None:
    close = take(gone, None)
    if close is not None:
        close()


def leave_to_parent(fd: int) -> None:
    """In a fork's child: the connection is the parent's, and the number leads nowhere from now on.

    Whatever still uses the number here neither reads nor writes, nor closes another's file.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, fd)
    os.close(nothing)
