"""Making a blocking connection: TCP or a unix socket, with TLS or without, within a deadline.

Each step waits with poll, up to one common deadline. Only resolving a name needs a thread, because
the system's resolver has no timeout: the thread is abandoned if it takes too long.
"""

from __future__ import annotations

import _thread
import errno
import os
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from math import ceil, inf
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ref

from incumbent import clock
from incumbent.interrupts import raise_if_from_signal
from incumbent.unpatched import unpatched

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

_SLICE: Final = 1.0
"""Seconds of one wait; then `clock.now` is read again, which also counts suspended time."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3))
"""A subscription may receive nothing for hours, and must still notice that a host vanished."""
_UNDER_WAY: Final = (errno.EINPROGRESS, getattr(errno, "WSAEWOULDBLOCK", errno.EINPROGRESS))
PARTS: Final = 2
"""An address gets half of the time that is left; less could be too little for a slow handshake."""
_NO_CONNECTION: Final = "no connection in time"
_NO_NAME: Final = "the name was not resolved in time"

_now = clock.now


def connect(
    host: str, port: int, until: float, *, tls: ssl.SSLContext | None = None
) -> socket.socket:
    """A non-blocking socket, connected to the first address of `host` that accepts.

    With `tls`, the certificate must match `host`. Each address but the last has half of the time
    that is left: then the next may answer. Raises OSError, at `until` at the latest.
    """
    failure = OSError("the name has no address")
    for address, share in shared(resolve(host, port, until), until, until, PARTS):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            sock = _connected(family, (address, port), share)
            return sock if tls is None else wrap_tls(tls, sock, host, share)
        except OSError as error:
            raise_if_from_signal(error)
            failure = error
    raise failure


def shared(
    among: Sequence[T], until: float, lasts: float, parts: float = inf
) -> Iterator[tuple[T, float]]:
    """Yield each item with its deadline: an equal share of the time that is left by then.

    No share is less than one of `parts`. The last one has the time after `until` as well.
    """
    for left, each in zip(range(len(among), 0, -1), among, strict=True):
        now = _now()
        yield each, lasts if left == 1 else now + (until - now) / min(left, parts)


def connect_unix(path: str, until: float) -> socket.socket:
    """A non-blocking connection to a unix socket. Raises OSError, at `until` at the latest."""
    return _connected(socket.AF_UNIX, path, until)


def _connected(family: int, where: Any, until: float) -> socket.socket:
    # Not gevent's: its sockets belong to one thread's hub, and the keeper's thread uses these too.
    sock: socket.socket = unpatched("socket", "socket")(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if family in (socket.AF_INET, socket.AF_INET6):
            tune(sock)
        # A unix socket answers at once: a full backlog is EAGAIN there, which poll would not
        # outlast.
        code = sock.connect_ex(where)
        if code in _UNDER_WAY:
            if not wait_ready(sock, until, writing=True):
                raise TimeoutError(_NO_CONNECTION)
            # Writable says that connecting has ended, not how.
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            shown = where if isinstance(where, str) else f"{where[0]}:{where[1]}"
            raise OSError(code, os.strerror(code), shown)
        return sock
    except BaseException:
        sock.close()
        raise


def tune(sock: socket.socket) -> None:
    """Send small requests at once, and probe a silent connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def wrap_tls(tls: ssl.SSLContext, sock: socket.socket, host: str, until: float) -> ssl.SSLSocket:
    """Do the TLS handshake on a connected socket. Raises OSError by `until`, and closes it then."""
    import ssl  # imported only for TLS: it takes 10 ms

    try:
        # wrap_socket refuses a handshake on a socket that does not block; below it keeps the
        # deadline.
        secured = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
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
    """Wait; return whether the socket became ready before `until`, or another thread closed it.

    `sock` may be a bare descriptor, such as libpq's.
    """
    while (left := until - _now()) > 0:
        if is_ready(sock, writing=writing, seconds=min(left, _SLICE)):
            return True
    return False


def is_ready(sock: socket.socket | int, *, writing: bool, seconds: float = 0) -> bool:
    """Whether the socket becomes ready within `seconds`, or is closed. One system call."""
    # Another thread closed it. "Ready" lets the caller go on into the call that says so.
    if not isinstance(sock, int) and sock.fileno() < 0:
        return True
    if not hasattr(select, "poll"):
        reads, writes = ([], [sock]) if writing else ([sock], [])
        return any(select.select(reads, writes, [], seconds))
    # Not select(), which refuses descriptors of 1024 and more.
    poll = select.poll()
    poll.register(sock, select.POLLOUT if writing else select.POLLIN)
    # Rounded up to milliseconds: rounding down would spin.
    return bool(poll.poll(ceil(seconds * 1000)))


def make_poller(*fds: int) -> Callable[[float], Sequence[int]]:
    """A function that waits for so many seconds, and returns the readable descriptors."""
    if not hasattr(select, "poll"):
        return lambda seconds: select.select(fds, [], [], seconds)[0]
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    # Rounded up to milliseconds: rounding down would spin.
    return lambda seconds: [fd for fd, _ in poll.poll(ceil(seconds * 1000))]


# -- names ----------------------------------------------------------------------------------------


def literal_address(host: str) -> str | None:
    """`host` if it is an IP address, else None."""
    # The zone of an IPv6 address ("fe80::1%eth0") is no part of its syntax.
    six = host.partition("%")[0]
    for family, text in ((socket.AF_INET, host), (socket.AF_INET6, six)):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError) as error:
            raise_if_from_signal(error)
        else:
            return host
    return None


def is_unknown(error: object) -> bool:
    """Whether `error` says that there is no such host, not that the resolver cannot be asked."""
    return isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME


def look_up(host: str, port: int | str) -> list[str]:
    """The addresses of a name, from the system's resolver, which has no timeout.

    Raises OSError.
    """
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no host name") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def resolve(host: str, port: int | str, until: float) -> list[str]:
    """The addresses of `host`. Raises OSError, at `until` at the latest."""
    address = literal_address(host)
    if address is not None:
        return [address]
    return run_bounded(lambda: look_up(host, port), until, _NO_NAME)


def run_bounded(work: Callable[[], T], until: float, late: str) -> T:
    """Run `work`, which has no timeout of its own, on a daemon thread; return or raise its outcome.

    Raises TimeoutError(`late`) at `until`; `work` then goes on.
    """
    # Looked up in `_thread` at each call: under gevent this is a greenlet, and waiting for it lets
    # other greenlets run. Finalizers call this too, perhaps while `threading` holds a lock.
    done = _thread.allocate_lock()
    done.acquire()
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            failures.append(error)
        finally:
            # Last: the caller reads the lists as soon as it has the lock.
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError as error:
        raise_if_from_signal(error)
        # The interpreter is ending and starts no threads: rather be late than leave leases behind.
        run()
    while not done.acquire(timeout=min(_SLICE, max(0.0, until - _now()))):
        if _now() >= until:
            raise TimeoutError(late)
    if failures:
        raise failures[0]
    return results[0]


# -- connections that were not closed -------------------------------------------------------------

# The garbage collector finalizes a cycle in any order, and a socket that is finalized before its
# owner warns that it was not closed. Callbacks of weak references run before all finalizers.

_open: Final[dict[ref[Any], Callable[[], object]]] = {}
"""By connection: the function that closes it, which also keeps the socket alive until then."""


def close_with(wire: object, close: Callable[[], object]) -> None:
    """Call `close` when `wire` is collected; at the interpreter's end, its `__del__` must do it."""
    _open[ref(wire, _collected)] = close


def _collected(
    gone: ref[Any],
    # Bound here: at the interpreter's end the module's names are cleared first.
    take: Callable[[ref[Any], None], Callable[[], object] | None] = _open.pop,
) -> None:
    close = take(gone, None)
    if close is not None:
        close()


def leave_to_parent(fd: int) -> None:
    """In a fork's child: leave the connection to the parent; `fd` becomes the null device.

    Code that still uses `fd` here can then neither use the connection nor close another file.
    """
    # dup2 closes and replaces in one step: no other thread gets the number in between.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, fd)
    os.close(nothing)
