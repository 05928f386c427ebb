"""Making a blocking connection without ever waiting longer than was allowed.

Name resolution has no timeout, so it happens on a helper thread; connecting and the TLS handshake
wait with poll, up to one common deadline.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from errno import EINPROGRESS
from ipaddress import ip_address
from typing import Any, Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.stores.etcd.errors import connect_error
from incumbent.stores.etcd.exchange import Site
from incumbent.stores.etcd.options import Endpoint
from incumbent.stores.etcd.wire import Wire, wait_ready
from incumbent.unpatched import original, start_thread

__all__ = ["as_address", "dial", "tune"]

_LONGEST: Final = 3600.0
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", 3))
"""A watch sends nothing for hours: a host that vanished must be noticed all the same."""
_REFUSED: Final = "no connection in time"


def dial(site: Site, endpoint: Endpoint, until: float) -> Wire:
    """A connection. Raises StoreUnavailable, at `until` (of clock.now) at the latest."""
    if clock.now() >= until:
        raise StoreUnavailable(f"{endpoint}: no time is left to connect")
    failure: Exception = OSError("the name has no address")
    try:
        for family, address in _addresses(endpoint, until):
            try:
                return Wire(_connected(site, endpoint, family, address, until))
            except OSError as error:
                failure = error
    except OSError as error:
        failure = error
    raise connect_error(failure, str(endpoint), proved=site.proved) from failure


def as_address(host: str) -> str | None:
    """The address that `host` already is, so that nobody has to be asked."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _addresses(endpoint: Endpoint, until: float) -> Sequence[tuple[int, str]]:
    known = as_address(endpoint.host)
    if known is not None:
        return [(socket.AF_INET6 if ":" in known else socket.AF_INET, known)]
    answered = original("_thread", "allocate_lock")()
    answered.acquire()
    found: list[Any] = []

    def resolve() -> None:
        try:
            entries = original("socket", "getaddrinfo")(
                endpoint.host, endpoint.port, 0, socket.SOCK_STREAM
            )
            found.extend(dict.fromkeys((entry[0], str(entry[4][0])) for entry in entries))
        except OSError as error:
            found.append(error)
        finally:
            answered.release()

    with suppress(RuntimeError):
        # The interpreter is ending and starts no threads any more: then there is no answer.
        start_thread(resolve, "incumbent-resolve")
    if not answered.acquire(timeout=min(_LONGEST, max(0.0, until - clock.now()))):
        raise TimeoutError("the name was not resolved in time")
    if found and isinstance(found[0], OSError):
        raise found[0]
    return found


def _connected(
    site: Site, endpoint: Endpoint, family: int, address: str, until: float
) -> socket.socket:
    sock: socket.socket = original("socket", "socket")(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        tune(sock)
        if sock.connect_ex((address, endpoint.port)) == EINPROGRESS and not wait_ready(
            sock, until, writing=True
        ):
            raise TimeoutError(_REFUSED)
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, _text_of(code))
        sock.getpeername()
        return sock if site.tls is None else _secured(site.tls, sock, endpoint.host, until)
    except BaseException:
        sock.close()
        raise


def _text_of(code: int) -> str:
    import os

    return os.strerror(code)


def tune(sock: socket.socket) -> None:
    """Small requests at once, and probes on a silent connection."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _secured(
    context: ssl.SSLContext, sock: socket.socket, host: str, until: float
) -> ssl.SSLSocket:
    secured = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
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
