"""Resolving a host's name within a deadline.

The system's resolver has no timeout, so a name is resolved on a thread of its own. That thread is
abandoned if it takes too long. An address needs no thread.
"""

from __future__ import annotations

import _thread
import socket
from collections.abc import Callable
from typing import Final, TypeVar

from incumbent import clock
from incumbent.interrupts import raise_handlers

T = TypeVar("T")

_SLICE: Final = 1.0
"""Seconds of one wait; then `clock.now` is read again, which also counts suspended time."""
_LATE: Final = "the name was not resolved in time"

_now = clock.now


def literal_address(host: str) -> str | None:
    """`host` if it is an IP address, else None."""
    # The zone of an IPv6 address ("fe80::1%eth0") is no part of its syntax.
    six = host.partition("%")[0]
    for family, text in ((socket.AF_INET, host), (socket.AF_INET6, six)):
        try:
            socket.inet_pton(family, text)
        except (OSError, ValueError) as error:
            raise_handlers(error)
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
    return run_bounded(lambda: look_up(host, port), until, _LATE)


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
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError as error:
        raise_handlers(error)
        # The interpreter is ending and starts no threads: rather be late than leave leases behind.
        run()
    while not done.acquire(timeout=min(_SLICE, max(0.0, until - _now()))):
        if _now() >= until:
            raise TimeoutError(late)
    if failures:
        raise failures[0]
    return results[0]
