"""The asynchronous side: one connection for each event loop, and `runner` awaited.

All tasks of a loop share the connection; while one task makes it, the others wait. Redis answers
in order, so each answer belongs to the oldest pending request, whether its task still waits or not:
the request of a task that was cancelled, or ran out of time, stays pending, and its answer is
dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import PLAIN, Ask, GiveOutcome, Key, Parting, TakeOutcome
from incumbent.net.aiowire import AsyncConnection, connect, connect_unix
from incumbent.net.limiter import DIAL_WITHIN, IN_FLIGHT, limits
from incumbent.net.pool import Broken
from incumbent.net.readers import SUSPENDING, SharedWakeup
from incumbent.stores.loops import LoopEnd
from incumbent.stores.redis.give import give_request, read_give
from incumbent.stores.redis.incarnation import (
    CHECK_EVERY,
    RedisOperations,
    RedisPlan,
    ServerContext,
)
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.resp import as_eval, is_forgotten
from incumbent.stores.redis.runner import DIALECT, RedisRunner
from incumbent.stores.redis.site import Demoted, Outdated, Packer, ProviderFailed, RedisSite
from incumbent.stores.redis.take import finish_take, read_take, take_request
from incumbent.stores.redis.wire import (
    UNUSABLE,
    AnyWire,
    Call,
    Discovery,
    Enough,
    Layer,
    RedisSide,
    open_wire,
    run_program,
)

if TYPE_CHECKING:
    from ssl import SSLContext

T = TypeVar("T")

_now = clock.now
_LONGEST = 3600.0
_APART = 0.005
"""Seconds between two checks of all deadlines: with thousands of them, a check takes 1 ms."""
_GATHERS = 0.02
"""Seconds for which requests are gathered: a step of the loop may take a second of their time."""

_Asked: TypeAlias = "tuple[asyncio.Future[Any], float, int, int]"
"""A request's future, its deadline, `_received` when it was made, and its number of answers."""


class AsyncRedisWire(AsyncConnection, AnyWire):
    """An asynchronous AnyWire. Many tasks may call `ask`, but only one `send` and `next`."""

    def __init__(self) -> None:
        AnyWire.__init__(self)
        AsyncConnection.__init__(self)
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._asked: deque[_Asked] = deque()
        self._unsent: list[tuple[bytes, _Asked]] = []
        self._gathers_since = 0.0
        self._parts: list[Any] = []
        self._received = 0
        self._inbox: deque[Any] = deque()
        self.on_message: Callable[[Any], None] | None = None
        """Called with each message at once, in place of `next`; with None when no more can come."""
        self.retired = False
        """No further request is to be sent; it closes when no task waits for an answer any more."""

    def is_stale(self, *, trust: bool) -> bool:
        """Whether it is closed (the event loop notices that) or retired.

        Also if the server sent a message that nobody had asked for.
        """
        return self._failure is not None or self.retired or bool(self._inbox)

    def retire(self) -> None:
        """Close as soon as no task waits for an answer."""
        self.retired = True
        if not self._is_awaited():
            self.close()

    # -- shared by many tasks -----------------------------------------------------------------

    def ask(self, request: bytes, until: float, answers: int = 1) -> asyncio.Future[Any]:
        """A future of the answer, or of the list of several; it fails with Broken. Raises Broken.

        The request is sent at once if no other is pending. Else it is sent together with those of
        all other tasks that are ready now.
        """
        now = self._admit(until)
        future = self._loop.create_future()
        asked = (future, until, self._received, answers)
        if self._asked or self._unsent:
            if not self._unsent:
                # At the end of this step of the loop: all tasks that are ready
                # have added theirs by then.
                self._loop.call_soon(self._flush)
                self._gathers_since = now
            self._unsent.append((request, asked))
            if now - self._gathers_since > _GATHERS:
                self._flush()
        else:
            try:
                self._write(request, [asked])
            except BaseException:
                # A signal handler's exception may have come between its two steps.
                self.close()
                raise
        return future

    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Send requests together; return their answers. Raises Broken."""
        answer = await self.ask(payload, until, answers)
        return [answer] if answers == 1 else list(answer)

    def _flush(self) -> None:
        try:
            self._fail_late(_now())
            # Requests that no task waits for are not sent: a take would only have to be undone.
            ready = [each for each in self._unsent if not each[1][0].done()]
            self._unsent.clear()
            if ready and self._failure is None:
                payload = b"".join([request for request, _ in ready])
                self._write(payload, [asked for _, asked in ready])
        except Exception as error:
            self._break(error)
            raise

    def _write(self, payload: bytes, asked: list[_Asked]) -> None:
        # Noted first: were it sent and not noted, its answer would be taken for another's.
        self._asked.extend(asked)
        self._transport.write(payload)

    # -- used by one task: subscriptions ------------------------------------------------------

    def send(self, request: bytes, until: float) -> None:
        """Send a request whose answer is read by `next`. Raises Broken."""
        self._admit(until)
        self._transport.write(request)

    async def next(self, until: float) -> Any:
        """The next message, or the next answer to a request of `send`. Raises Broken."""
        if self._inbox:
            return self._inbox.popleft()
        self._admit(until)
        future = self._loop.create_future()
        self._asked.append((future, until, self._received, 1))
        return await future

    # -- deadlines ----------------------------------------------------------------------------

    def _tick(self) -> None:
        """Fail the requests whose deadline has passed; set the timer for the next deadline."""
        now, earliest = _now(), inf
        for future, until, received, _ in self._asked:
            if until > now:
                earliest = min(earliest, until)
                continue
            # It stays in `_asked`: its answer may still come, and must not go to the next request.
            _end(future, Broken("no answer in time", sent=True, late=True))
            if received == self._received:
                # No byte came in all that time. A half-open socket would lose later requests too.
                self.retired = True
        earliest = min(earliest, self._fail_late(now))
        if self.retired and not self._is_awaited():
            self.close()
        elif earliest < inf:
            self._wake_at(max(earliest, now + _APART))

    def _fail_late(self, now: float) -> float:
        """Fail the unsent requests without time; return the next deadline of the others."""
        earliest = inf
        for _, (future, until, *_) in self._unsent:
            if until > now:
                earliest = min(earliest, until)
            else:
                _end(future, Broken("no time is left", sent=False, late=True))
        return earliest

    def _waiting(self) -> list[_Asked]:
        return [*self._asked, *(asked for _, asked in self._unsent)]

    def _is_awaited(self) -> bool:
        return any(not asked[0].done() for asked in self._waiting())

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        # Apart from the others: of these it is certain that nothing was done.
        unsent = [asked for _, asked in self._unsent]
        self._unsent.clear()
        for sent, each in ((True, self._waiting()), (False, unsent)):
            for future, *_ in each:
                _end(future, _failure_for(error, sent=sent))
        self._asked.clear()
        if self.on_message is not None:
            self.on_message(None)

    # -- called by the event loop -------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._received += 1
        try:
            self._feed(data)
            while (answer := self._gets()) is not False:
                self._deliver(answer)
        except hiredis.ProtocolError as error:
            self._fail(error)
            self._transport.abort()
        except Exception as error:
            self._break(error)
            raise
        # A signal handler's error: bytes may be lost between the parser and us.
        except BaseException:
            self.close()
            raise
        if self.retired and not self._is_awaited():
            self.close()

    def _deliver(self, answer: Any) -> None:
        if not self._asked:
            (self.on_message or self._inbox.append)(answer)
            return
        future, _, _, answers = self._asked[0]
        if answers > 1:
            self._parts.append(answer)
            if len(self._parts) < answers:
                return
            answer, self._parts = self._parts, []
        self._asked.popleft()
        if not future.done():
            future.set_result(answer)


def _end(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # asyncio would complain where a cancelled task does not ask


def _failure_for(error: Exception, *, sent: bool) -> Exception:
    """The exception for one of the requests on a connection that failed by `error`."""
    if not isinstance(error, Broken | hiredis.ProtocolError):
        return error
    broken = Broken(str(error), sent=sent)
    broken.__cause__ = error.__cause__
    return broken


# -- making a connection --------------------------------------------------------------------------


async def dial(site: RedisSite, until: float) -> AsyncRedisWire:
    """A connection that is logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """

    async def connected(target: RedisTarget, tls: SSLContext | None) -> AsyncRedisWire:
        if target.path:
            return await connect_unix(AsyncRedisWire, target.path)
        return await connect(AsyncRedisWire, target.host, target.port, tls=tls, until=until)

    async def login(credentials: Any) -> Sequence[str]:
        try:
            found: Sequence[str] = await credentials.get_credentials_async()
        except Exception as error:
            raise ProviderFailed(error) from error
        return found

    try:
        async with asyncio.timeout(min(_LONGEST, until - _now())):
            return await open_wire(site, until, connected, login)
    except TimeoutError as error:
        raise_if_from_signal(error)
        raise StoreUnavailable(f"{site.where} cannot be reached: no connection in time") from error


# -- the store -------------------------------------------------------------------------------------


class AsyncRedisStore(RedisRunner[AsyncRedisWire]):
    """An AsyncStore (see stores.base). It belongs to the loop in which it was made."""

    def __init__(self, site: RedisSite, packer: Packer) -> None:
        super().__init__(site, packer, SUSPENDING)
        self._end = LoopEnd(self._close_all)
        self._shared: AsyncRedisWire | None = None
        self._dialing: asyncio.Task[StoreUnavailable | None] | None = None
        self.limits = limits(site.where, IN_FLIGHT, SharedWakeup, self.trusted, self._join)

    async def dial(self, until: float) -> AsyncRedisWire:
        await self._end.watch()
        wire = await dial(self.site, until)
        # Again: the store may have been closed meanwhile.
        await self._end.watch()
        return wire

    async def aclose(self) -> None:
        self.let_go()
        await self._end.aclose()

    def let_go(self) -> None:
        super().let_go()
        wire, self._shared = self._shared, None
        if wire is not None:
            wire.retire()

    def _close_all(self) -> None:
        self._shared = None
        for wire in list(self.all):
            wire.close()

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See stores.base.AsyncStore. No plan is needed if the server was checked just now."""
        wire, packer, now = self._shared, self.packer, _now()
        if (
            wire is None
            or wire.is_stale(trust=True)
            or now - (server := wire.server).check_sent > CHECK_EVERY
            or ask.ttl > server.old_enough_for
            or self.hub.resting
        ):
            return await super().take(key, claim, ask, until)
        try:
            deadline = until + server.clock_ahead
            request = take_request(packer, key, claim, ask, server.id_and_floor, deadline)
            outcome: TakeOutcome
            reply = await self._ask(wire, request, until)
            # By `unchanged_at`, of the check that came back: one of another task, sent since, may
            # not have.
            if type(reply) is bytes and now - server.unchanged_at <= CHECK_EVERY:
                outcome = read_take(packer, reply, key, claim, ask, server.epoch)
            else:
                context = ServerContext(self.site, packer, server)
                program = finish_take(context, key, claim, ask, until, now, reply)
                outcome = await run_program(wire, program, until, begun=True)
        except UNUSABLE as error:
            self.keep_or_close(wire, self.idle, error)
            outcome = await self.again(error, DIALECT.take(key, claim, ask), until)
        except StoreError as error:
            self.keep_or_close(wire, self.idle, error)
            raise
        self.hub.note_outcome(claim, now, outcome)
        return outcome

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        wire, packer = self._shared, self.packer
        if wire is None or wire.is_stale(trust=True):
            return await super().give(key, claim, token, until, parting=parting)
        try:
            request = give_request(packer, key, claim, token, parting)
            return read_give(packer, await self._ask(wire, request, until), key)
        except UNUSABLE as error:
            self.keep_or_close(wire, self.idle, error)
            return await self.again(error, DIALECT.give(key, claim, token, parting), until)
        except StoreError as error:
            self.keep_or_close(wire, self.idle, error)
            raise

    @staticmethod
    async def _ask(wire: AsyncRedisWire, request: bytes, until: float) -> Any:
        reply = await wire.ask(request, until)
        return await wire.ask(as_eval(request), until) if is_forgotten(reply) else reply

    # -- the connection -----------------------------------------------------------------------

    def trusted(self, *, trust: bool = True) -> AsyncRedisWire | None:
        wire = self._shared
        return None if wire is None or wire.is_stale(trust=trust) else wire

    def put_back(self, wire: AsyncRedisWire, idle: list[AsyncRedisWire]) -> None:
        """Do nothing: the connection stays shared with other tasks."""

    def keep_or_close(
        self, wire: AsyncRedisWire, idle: list[AsyncRedisWire], error: BaseException
    ) -> None:
        if isinstance(error, Outdated | Demoted) or wire.server.problem is not None:
            self._forget(wire)
        elif isinstance(error, UNUSABLE) and not isinstance(error, Broken):
            # The answer was another request's: those that follow would be too. After Broken there
            # is nothing to do: the connection has failed for all, or only this request was late.
            wire.close()

    def drop_outdated(self, epoch: str) -> None:
        wire = self._shared
        if wire is not None and wire.server.epoch != epoch:
            self._forget(wire)

    def _forget(self, wire: AsyncRedisWire) -> None:
        """The connection's facts about the server are outdated: the next request connects anew."""
        # Another task may have replaced it already.
        if self._shared is wire:
            self._shared = None
        wire.retire()

    async def fresh(self, plan: RedisPlan[T], until: float) -> AsyncRedisWire:
        return await self._join(until, until)

    async def _join(self, until: float, lasts: float = -inf) -> AsyncRedisWire:
        """The connection of all tasks. It is still made if this caller runs out of time.

        The dial goes on until `lasts`, or for as long as a dial may take, whichever is longer.
        """
        while (wire := self.trusted()) is None:
            dialing = self._dialing
            if dialing is None:
                dialing = self._dialing = asyncio.create_task(self._dial_for_all(lasts))
            # Waited for, not awaited: a caller that is cancelled must not cancel it for the others.
            await asyncio.wait((dialing,), timeout=max(0.0, until - _now()))
            where = self.site.where
            if not dialing.done():
                raise StoreUnavailable(f"{where} cannot be reached: no connection in time")
            failure = dialing.result()
            if failure is not None:
                # An error for each task: raised by many, one object would gather
                # all their tracebacks.
                raise StoreUnavailable(
                    str(failure), permanent=failure.permanent, retry_after=failure.retry_after
                ) from failure
        return wire

    async def _dial_for_all(self, lasts: float) -> StoreUnavailable | None:
        """Make the connection; return why there is none. After `let_go` it is not kept."""
        # `let_go` makes another list: by that a dial notices that it is from before.
        idle = self.idle
        try:
            # The loop may have much to do before: the dial's time begins here.
            wire = await self._connect(max(lasts, _now() + DIAL_WITHIN))
        except StoreUnavailable as error:
            return error
        finally:
            # Before its waiters run: whoever finds no connection then begins another dial.
            self._dialing = None
        if idle is not self.idle:
            wire.close()
            return None
        # Tasks that still wait for answers on the old connection get them: it closes after those.
        before, self._shared = self._shared, wire
        if before is not None:
            before.retire()
        return None


# -- for layers ------------------------------------------------------------------------------------


class AsyncRedisSide(RedisSide):
    """The side of asyncio callers. It belongs to the loop in which it was made."""

    def __init__(self) -> None:
        self.stores: list[AsyncRedisStore] = []
        self._turn = asyncio.Lock()

    def runner(self, site: RedisSite, packer: Packer) -> RedisRunner[Any]:
        store = AsyncRedisStore(site, packer)
        self.stores.append(store)
        return store

    async def dial(self, site: RedisSite, until: float) -> AnyWire:
        return await dial(site, until)

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def update(self, discovery: Discovery, until: float) -> None:
        """See RedisSide.update. One task asks for all of them."""
        if not discovery.stale:
            return
        try:
            async with asyncio.timeout(max(0.0, until - _now())):
                await self._turn.acquire()
        except TimeoutError as error:
            raise_if_from_signal(error)
            raise StoreUnavailable("no time was left to ask where the servers are") from error
        try:
            await super().update(discovery, until)
        finally:
            self._turn.release()

    async def gather(
        self, calls: Sequence[Call[T]], until: float, enough: Enough[T] | None = None
    ) -> list[T | StoreError]:
        async def outcome_of(call: Call[T]) -> T | StoreError:
            try:
                return await call(until)
            except StoreError as error:
                return error

        tasks = [asyncio.create_task(outcome_of(call)) for call in calls]
        # If all results are wanted, each call keeps to the deadline itself.
        timeout = max(0.0, until - _now()) if enough else None
        found: list[T] = []
        try:
            for ended in asyncio.as_completed(tasks, timeout=timeout):
                outcome = await ended
                if not isinstance(outcome, StoreError):
                    found.append(outcome)
                    if enough and enough(found):
                        break
        except TimeoutError as error:
            raise_if_from_signal(error)
        finally:
            # Those who are late are not waited for: a cancelled request is
            # dropped by its connection.
            for task in tasks:
                task.cancel()
        late = OutcomeUnknown("no answer in time")
        return [task.result() if task.done() else late for task in tasks]


class AsyncFace(Layer):
    """The operations of a layer as an AsyncStore (see stores.base) of one event loop."""

    def __init__(self, where: str, side: AsyncRedisSide, layer: RedisOperations) -> None:
        super().__init__(layer)
        self._side = side
        self.limits = limits(where, IN_FLIGHT, SharedWakeup)

    async def aclose(self) -> None:
        self.let_go()
        for store in self._side.stores:
            await store.aclose()

    def detach(self) -> None:
        """In a fork's child: release the descriptors without touching the parent's loop."""
        for store in self._side.stores:
            store.detach()
