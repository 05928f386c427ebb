"""The lease that this code runs under: of the decorated function around it, or of its supervisor.

A supervisor's answers are not cached: each read asks over its socket, and the proof counts from the
instant before the question. No answer means "not proved".
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

from incumbent import clock
from incumbent.durations import Duration, parse_duration, say_seconds
from incumbent.errors import LeaseLost, Misuse
from incumbent.interrupts import raise_if_from_signal
from incumbent.protocol.messages import lease_lost

if TYPE_CHECKING:
    from incumbent.locks.leases import AsyncLease, Lease

_ANSWER_WITHIN: Final = 0.25
"""Seconds to wait for an answer; a slower supervisor is taken for a broken one."""
_LONGEST: Final = 65_536


class _Answer(NamedTuple):
    until: float
    lost: str
    silence: str = ""
    """The reason why there is no answer."""


class CurrentLease:
    """The lease of a supervised command. The supervisor holds it: it cannot be released here.

    Each read takes a round trip to the supervisor, at most 0.25 s. Any descendant of the command
    may ask, also after a fork and as another user.
    """

    __slots__ = ("_path", "fencing_token", "holder", "name", "slot")

    def __init__(self, name: str, holder: str, term: int, slot: str | None, path: str) -> None:
        self.name = name
        """The leased name."""
        self.holder = holder
        """The holder's name, as others see it."""
        self.fencing_token = term
        """A number that is larger than that of every earlier holder of this name."""
        self.slot = slot
        """The slot that was claimed with the lease, if any."""
        self._path = path

    @property
    def term(self) -> int:
        """The fencing token, by its name in elections."""
        return self.fencing_token

    @property
    def valid(self) -> bool:
        """Whether the lease is proved at this instant."""
        return self.remaining > 0

    @property
    def remaining(self) -> float:
        """Seconds for which the lease is proved; 0.0 if it is not, or if there is no answer."""
        return max(0.0, self._ask().until - clock.now())

    @property
    def lost(self) -> bool:
        """Whether the lease is no longer proved."""
        return not self.valid

    def check(self, need: Duration = 0.0) -> None:
        """Return only if the lease is proved for at least `need` more; else raise LeaseLost.

        Raises ConfigError if `need` is no duration.
        """
        seconds = parse_duration(need, "need")
        answer = self._ask()
        left = answer.until - clock.now()
        if left > 0 and left >= seconds:
            return
        if left > 0:
            raise lease_lost(
                self.name, "need", f": {say_seconds(left)} left, {say_seconds(seconds)} needed"
            )
        if answer.silence:
            raise LeaseLost(
                f"the lease on {self.name!r} cannot be proved: {answer.silence}", name=self.name
            )
        raise lease_lost(self.name, answer.lost or "expired")

    def __repr__(self) -> str:
        return f"<CurrentLease {self.name!r} token={self.fencing_token}>"

    def _ask(self) -> _Answer:
        # Before the question, as with a store: a slow answer then proves less, and never more.
        asked = clock.now()
        try:
            facts = json.loads(_question(self._path, asked + _ANSWER_WITHIN))
            # The path may be that of a later term: an answer about another lease proves nothing.
            if facts["term"] != self.fencing_token or facts["name"] != self.name:
                return _Answer(asked, "taken")
            return _Answer(asked + float(facts["remaining"]), str(facts["lost"]))
        except TimeoutError as error:
            raise_if_from_signal(error)
            return _Answer(asked, "", f"its supervisor did not answer within {_ANSWER_WITHIN} s")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise_if_from_signal(error)
            return _Answer(asked, "", f"its supervisor did not answer ({error})")


def _question(path: str, until: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        _connect(link, path, until)
        reply = b""
        # The deadline is for the whole answer; a socket's own timeout begins anew with each piece.
        while not reply.endswith(b"\n") and len(reply) < _LONGEST:
            link.settimeout(_left(until))
            more = link.recv(4096)
            if not more:
                raise ConnectionError("it hung up")
            reply += more
        return reply


def _connect(link: socket.socket, path: str, until: float) -> None:
    while True:
        link.settimeout(_left(until))
        try:
            return link.connect(path)
        except BlockingIOError:
            # The socket's backlog is full (unix(7): EAGAIN): others are being answered.
            time.sleep(0.005)


def _left(until: float) -> float:
    left = until - clock.now()
    if left <= 0:
        raise TimeoutError
    return left


_of_call: ContextVar[Lease | AsyncLease | None] = ContextVar("incumbent.current", default=None)


@contextmanager
def around_call(lease: Lease | AsyncLease) -> Iterator[None]:
    """Make `current()` return this lease in the body."""
    before = _of_call.set(lease)
    try:
        yield
    finally:
        _of_call.reset(before)


def current() -> CurrentLease | Lease | AsyncLease:
    """The lease that this code runs under.

    In a function decorated with `exclusive` or `once`, and in the tasks that it starts, this is the
    function's lease; a thread that it starts does not inherit it. Elsewhere it is the lease that
    this process runs under (`incumbent run`, `lead` or `work`). Raises Misuse without either.
    """
    lease = _of_call.get()
    return lease if lease is not None else _of_supervisor()


def _of_supervisor() -> CurrentLease:
    environ = os.environ
    try:
        name, term = environ["INCUMBENT_LEASE_NAME"], int(environ["INCUMBENT_LEASE_TERM"])
        holder, path = environ["INCUMBENT_LEASE_HOLDER"], environ["INCUMBENT_LEASE_SOCKET"]
    except (KeyError, ValueError) as error:
        raise Misuse(
            "incumbent.current() is for a function decorated with exclusive or once, and for a"
            " command that `incumbent run`, `lead` or `work` started (INCUMBENT_LEASE_* is"
            f" incomplete: {error}); elsewhere take a lease with incumbent.Lock"
        ) from None
    return CurrentLease(name, holder, term, environ.get("INCUMBENT_LEASE_SLOT"), path)
