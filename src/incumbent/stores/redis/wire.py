"""A connection as both sides know it: logging in, and carrying out one program or several.

These are coroutines. The asynchronous side awaits them. The blocking side runs each in one step
(`protocol.port.run_blocking`), with connections that block instead of suspending.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.interrupts import raise_handlers
from incumbent.net.pool import Broken, Connection, Mismatch
from incumbent.stores.plan import Plan
from incumbent.stores.redis.incarnation import Server, ServerFacts
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.resp import Program, RequestBatch, as_eval, is_forgotten, pack
from incumbent.stores.redis.server import (
    LoginRefused,
    ProviderFailed,
    RedisSite,
    TooLate,
    connect_error,
)

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")
W = TypeVar("W", bound="AnyWire")

UNUSABLE: Final = (Broken, Mismatch, hiredis.ProtocolError)
"""After these errors a connection is closed."""

_now = clock.now


class AnyWire(ServerFacts, Connection):
    """A blocking or asynchronous connection. `used`: when the present (or last) exchange began."""

    used: float

    @abstractmethod
    def send(self, request: bytes, until: float) -> None:
        """Send a request whose answer is read by `next`. Raises Broken."""

    @abstractmethod
    async def next(self, until: float) -> Any:
        """The next answer or message. Raises Broken."""

    @abstractmethod
    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Send requests together; return their answers. Raises Broken."""


# -- making it ------------------------------------------------------------------------------------


async def open_wire(
    site: RedisSite,
    until: float,
    connected: Callable[[RedisTarget, SSLContext | None], Awaitable[W]],
    login: Callable[[Any], Awaitable[Sequence[str]]],
) -> W:
    """A connection that is logged in; `login` asks a credential provider. Raises StoreUnavailable.

    Login, client name and database take one round trip.
    """
    target = site.target
    try:
        wire = await connected(target, target.tls.context() if target.tls else None)
        try:
            own = target.credentials
            words = target.login if own is None else await login(own)
            requests = [pack("AUTH", *words)] if words else []
            requests.append(pack("CLIENT", "SETNAME", "incumbent"))
            if target.db:
                requests.append(pack("SELECT", target.db))
            wire.send(b"".join(requests), until)
            for _ in requests:
                # Read one by one: a server that refuses a client may close after one reply.
                reply = await wire.next(until)
                if isinstance(reply, hiredis.ReplyError):
                    raise LoginRefused(str(reply))
        except BaseException:
            wire.close()
            raise
    except (OSError, LoginRefused, ProviderFailed, *UNUSABLE) as error:
        raise_handlers(error)
        raise connect_error(error, site) from error.__cause__ or error
    return wire


# -- carrying out a program ------------------------------------------------------------------------


async def carry_out(
    wire: AnyWire,
    program: Program[T],
    until: float,
    *,
    begun: bool = False,
    site: RedisSite | None = None,
) -> T:
    """Carry out a program; return its outcome. Raises Broken, Mismatch, StoreError.

    `begun`: one of its requests was carried out already. `site`: send only to the server it means.
    """
    answers: Any = None
    try:
        while True:
            step = program.send(answers)
            try:
                _check_meant(wire, site)
                replies = await wire.ask_all(step.payload, step.answers, until)
                if step.repeats and any(map(is_forgotten, replies)):
                    _check_meant(wire, site)
                    replies = await wire.ask_all(as_eval(step.payload), step.answers, until)
            except Broken as error:
                # Earlier steps were carried out, such as a take before its undo.
                error.sent = error.sent or begun or answers is not None
                raise
            answers = replies
    except StopIteration as end:
        result: T = end.value
        return result
    except TooLate as error:
        if _now() < until:
            raise
        # We were late ourselves: the connection and what is known of its server are sound.
        raise Broken(str(error), sent=False, late=True) from error


def _check_meant(wire: AnyWire, site: RedisSite | None) -> None:
    """Check before each request, since the previous answer may have taken long. Raises Broken."""
    if site is not None and not site.means(wire.target):
        why = "it may no longer be the master: the sentinels have to be asked again"
        raise Broken(why, sent=False, late=True)


# -- carrying out several at once ------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class JoinedPlan(Plan[Server, "list[T | StoreError]"]):
    """Several plans of one kind whose requests are sent together; returns each outcome."""

    parts: Sequence[Plan[Server, T]] = ()


def joined(parts: Sequence[Plan[Server, T]]) -> JoinedPlan[T]:
    """One plan for all of them."""

    def start(server: Server, until: float) -> Program[list[T | StoreError]]:
        return together([part.start(server, until) for part in parts])

    keys, ttl = [part.keys[0] for part in parts], max(part.ttl for part in parts)
    return JoinedPlan(parts[0].kind, start, keys, repeatable=False, ttl=ttl, parts=parts)


def together(programs: Sequence[Program[T]]) -> Program[list[T | StoreError]]:
    """Run several programs, with their steps sent together; return their outcomes.

    An error of the connection, which is no StoreError, is raised: then no outcome is known.
    """
    outcomes: list[Any] = [None] * len(programs)
    replies: dict[int, Any] = dict.fromkeys(range(len(programs)))
    asked = False
    while True:
        steps: dict[int, RequestBatch] = {}
        for at, reply in replies.items():
            try:
                steps[at] = programs[at].send(reply)
            except StopIteration as end:
                outcomes[at] = end.value
            except StoreError as error:
                outcomes[at] = error
            except Broken as error:
                error.sent = error.sent or asked
                raise
        if not steps:
            return outcomes
        asked = True
        replies = yield from _ask_together(steps)


def _ask_together(steps: dict[int, RequestBatch]) -> Program[dict[int, Any]]:
    """The replies to each step. Steps of unknown scripts are sent again, but no done release."""
    replies = yield from _send_together(steps)
    unknown = {
        at: RequestBatch(as_eval(step.payload), step.answers)
        for at, step in steps.items()
        if any(map(is_forgotten, replies[at]))
    }
    return {**replies, **((yield from _send_together(unknown)) if unknown else {})}


def _send_together(steps: dict[int, RequestBatch]) -> Program[dict[int, Any]]:
    payload = b"".join(step.payload for step in steps.values())
    count = sum(step.answers for step in steps.values())
    answers = iter((yield RequestBatch(payload, count, repeats=False)))
    return {at: [*islice(answers, step.answers)] for at, step in steps.items()}
