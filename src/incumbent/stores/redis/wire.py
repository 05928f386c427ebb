"""Connections as both sides know them: logging in, and carrying out one program or several.

A Layer wraps `run` for stores with more than one server. A RedisSide is how one side, blocking or
asyncio, connects, waits and asks several servers at the same time.

These are coroutines. The asynchronous side awaits them. The blocking side runs each in one step
(`stores.plan.run_blocking`), with connections that block instead of suspending.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Key
from incumbent.net.pool import Broken, Connection, Mismatch, exchange_error
from incumbent.stores.redis.incarnation import (
    RedisOperations,
    RedisPlan,
    ServerContext,
    ServerFacts,
)
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.resp import RequestBatch, RespProgram, as_eval, is_forgotten, pack
from incumbent.stores.redis.site import (
    LoginRefused,
    Packer,
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


class AnyWire(Connection):
    """A blocking or asynchronous connection. `used`: when the present (or last) exchange began."""

    def __init__(self) -> None:
        self.used = 0.0
        self.server = ServerFacts()

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
            words: Sequence[str] = [target.password] if target.password else []
            if target.username:
                words = target.username, target.password or ""
            if target.credentials is not None:
                words = await login(target.credentials)
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
        raise_if_from_signal(error)
        raise connect_error(error, site) from error.__cause__ or error
    return wire


# -- carrying out a program ------------------------------------------------------------------------


async def run_program(
    wire: AnyWire,
    program: RespProgram[T],
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
    if site is not None and not site.means(wire.server.target):
        why = "it may no longer be the master: the sentinels have to be asked again"
        raise Broken(why, sent=False, late=True)


# -- carrying out several at once ------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class JoinedPlan(RedisPlan["list[T | StoreError]"]):
    """Several plans of one kind whose requests are sent together; returns each outcome."""

    parts: Sequence[RedisPlan[T]] = ()


def joined(parts: Sequence[RedisPlan[T]]) -> JoinedPlan[T]:
    """One plan for all of them."""

    def start(server: ServerContext, until: float) -> RespProgram[list[T | StoreError]]:
        return together([part.start(server, until) for part in parts])

    keys, ttl = [part.keys[0] for part in parts], max(part.ttl for part in parts)
    return JoinedPlan(parts[0].kind, start, keys, repeatable=False, ttl=ttl, parts=parts)


def together(programs: Sequence[RespProgram[T]]) -> RespProgram[list[T | StoreError]]:
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
                # A program itself found it too late or outdated; what the others
                # sent was carried out.
                error.sent = error.sent or asked
                raise
        if not steps:
            return outcomes
        asked = True
        replies = yield from _ask_together(steps)


def _ask_together(steps: dict[int, RequestBatch]) -> RespProgram[dict[int, Any]]:
    """The replies to each step. Steps of unknown scripts are sent again, but no done release."""
    replies = yield from _send_together(steps)
    unknown = {
        at: RequestBatch(as_eval(step.payload), step.answers)
        for at, step in steps.items()
        if any(map(is_forgotten, replies[at]))
    }
    return {**replies, **((yield from _send_together(unknown)) if unknown else {})}


def _send_together(steps: dict[int, RequestBatch]) -> RespProgram[dict[int, Any]]:
    payload = b"".join(step.payload for step in steps.values())
    count = sum(step.answers for step in steps.values())
    answers = iter((yield RequestBatch(payload, count, repeats=False)))
    return {at: [*islice(answers, step.answers)] for at, step in steps.items()}


# -- more than one server --------------------------------------------------------------------------


Call: TypeAlias = Callable[[float], Coroutine[Any, Any, T]]
"""A call with a deadline, an instant. Raises StoreError."""
Enough: TypeAlias = Callable[[Sequence[T]], bool]
"""Whether these results are enough."""


def at_least(count: int) -> Enough[Any]:
    """A function that says whether there are at least `count` results."""
    return lambda results: len(results) >= count


class Layer(RedisOperations):
    """Passes every call on to `inner`. Subclasses add steps before and after."""

    def __init__(self, inner: RedisOperations) -> None:
        self.inner = inner
        self.dialect = inner.dialect

    async def run(self, plan: RedisPlan[T], until: float) -> T:
        return await self.inner.run(plan, until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await self.inner.wait_change(key, seen, until)

    def let_go(self) -> None:
        self.inner.let_go()


class Discovery(Protocol):
    """The servers' addresses, as last discovered; `advice`: what to check if discovery fails."""

    advice: str

    @property
    def summary(self) -> str:
        """The description for `doctor`."""

    def masters(self) -> list[tuple[str, RedisSite]]:
        """The known masters, each with its name if there are several."""

    @property
    def stale(self) -> bool:
        """Whether the servers must be asked again for the addresses."""

    async def ask(self, side: RedisSide, until: float) -> object:
        """Ask the servers for the addresses. Raises StoreUnavailable."""


class RedisSide(ABC):
    """How one kind of caller (blocking or asyncio) connects, waits and runs calls in parallel."""

    @abstractmethod
    def runner(self, site: RedisSite, packer: Packer) -> RedisOperations:
        """The connections to one server."""

    @abstractmethod
    async def dial(self, site: RedisSite, until: float) -> AnyWire:
        """A connection that is logged in. Raises StoreUnavailable."""

    @abstractmethod
    async def gather(
        self, calls: Sequence[Call[T]], until: float, enough: Enough[T] | None = None
    ) -> list[T | StoreError]:
        """Run all calls in parallel; return each call's result or StoreError.

        Stop as soon as `enough` results are there. Re-raise any other exception.
        """

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait, and let other threads or tasks work meanwhile."""

    async def update(self, discovery: Discovery, until: float) -> None:
        """Discover the servers again, if the addresses are stale. Each thread asks for itself."""
        if discovery.stale:
            await discovery.ask(self, until)

    async def survey(
        self,
        sites: Sequence[RedisSite],
        program: Callable[[RedisSite], RespProgram[T]],
        enough: Enough[T],
        until: float,
    ) -> list[T | StoreError]:
        """Run a program at all sites, each on its own connection, until answers are `enough`.

        Never raises: the error of a failed site is its outcome. Programs may run in parallel
        threads, so they must share no state.
        """
        calls = [partial(self._ask, site, program) for site in sites]
        return await self.gather(calls, until, enough)

    async def _ask(
        self, site: RedisSite, program: Callable[[RedisSite], RespProgram[T]], until: float
    ) -> T:
        try:
            wire = await self.dial(site, until)
            try:
                return await run_program(wire, program(site), until)
            finally:
                wire.close()
        except UNUSABLE as error:
            raise exchange_error(error, site.where) from error
