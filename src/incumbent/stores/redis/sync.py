"""The blocking side: connections, `runner` in one step, a shorter way for takes and gives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import PLAIN, Ask, GiveOutcome, Key, Parting, TakeOutcome
from incumbent.net.dial import connect, connect_unix, run_bounded
from incumbent.net.limiter import DIAL_WITHIN, PLACES, limits
from incumbent.net.pool import Broken
from incumbent.net.readers import BLOCKING, ThreadWakeup
from incumbent.net.wire import STALE_AFTER, BlockingWire
from incumbent.stores.loops import detach_in_child
from incumbent.stores.plan import BlockingTogether, run_blocking
from incumbent.stores.redis.give import give_request, read_give
from incumbent.stores.redis.incarnation import CHECK_EVERY, ServerContext
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.resp import as_eval
from incumbent.stores.redis.runner import DIALECT, RedisRunner
from incumbent.stores.redis.site import Packer, ProviderFailed, RedisSite
from incumbent.stores.redis.take import finish_take, read_take, take_request
from incumbent.stores.redis.wire import (
    UNUSABLE,
    AnyWire,
    Call,
    Enough,
    RedisSide,
    at_least,
    open_wire,
    run_program,
)

if TYPE_CHECKING:
    from socket import socket
    from ssl import SSLContext

T = TypeVar("T")

_now = clock.now


class RedisWire(BlockingWire, AnyWire):
    """A blocking AnyWire. `ask` and `read` are no coroutines, and `next` blocks."""

    def __init__(self, sock: socket) -> None:
        AnyWire.__init__(self)
        BlockingWire.__init__(self, sock)
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets

    def ask(self, request: bytes, until: float) -> Any:
        """Send one request; return its answer. Raises Broken."""
        self.send(request, until)
        # As `read`, but the parser is known to be empty before an answer comes.
        self._feed(self.receive(until))
        answer = self._gets()
        if answer is False:
            answer = self.read(until)
        if type(answer) is hiredis.ReplyError and str(answer).startswith("NOSCRIPT"):
            # The server was restarted, or an administrator flushed its scripts; nothing was done.
            return self.ask(as_eval(request), until)
        return answer

    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Send requests together; return their answers. Raises Broken."""
        self.send(payload, until)
        return [self.read(until) for _ in range(answers)]

    async def next(self, until: float) -> Any:
        """The next answer or message. Raises Broken."""
        return self.read(until)

    def read(self, until: float) -> Any:
        """As `next`, but no coroutine."""
        # hiredis returns False while an answer is incomplete; no answer in RESP 2 is a bool.
        while (answer := self._gets()) is False:
            self._feed(self.receive(until))
        return answer

    def buffered(self) -> Any:
        """A message that has been read already, or False. Raises Broken."""
        try:
            return self._gets()
        except hiredis.ProtocolError as error:
            raise Broken(str(error), sent=True) from error

    def fill(self) -> None:
        """Read the available bytes, without waiting for a whole message. Raises Broken."""
        if data := self.glance():
            self._feed(data)


W = TypeVar("W", bound=RedisWire)


def dial(site: RedisSite, until: float, make: Callable[[socket], W]) -> W:
    """A connection that is logged in, which `make` makes of its socket.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """

    async def connected(target: RedisTarget, tls: SSLContext | None) -> W:
        if target.path:
            return make(connect_unix(target.path, until))
        return make(connect(target.host, target.port, until, tls=tls))

    async def login(credentials: Any) -> Sequence[str]:
        late = "the credential provider gave no login in time"
        found: Sequence[str] = run_bounded(partial(_asked, credentials), until, late)
        return found

    if clock.now() >= until:
        raise StoreUnavailable(f"{site.where}: no time is left to connect")
    return run_blocking(open_wire(site, until, connected, login))


def _asked(credentials: Any) -> Sequence[str]:
    try:
        login: Sequence[str] = credentials.get_credentials()
    except Exception as error:
        raise ProviderFailed(error) from error
    return login


# -- the store -------------------------------------------------------------------------------------


class BlockingRunner(RedisRunner[RedisWire]):
    """The connections of all threads to one server."""

    def __init__(self, site: RedisSite, packer: Packer) -> None:
        super().__init__(site, packer, BLOCKING)
        self.limits = limits(site.where, PLACES, ThreadWakeup, lambda: self.idle, self.keep_another)
        detach_in_child(self)

    async def dial(self, until: float) -> RedisWire:
        return dial(self.site, until, RedisWire)

    async def keep_another(self, until: float) -> None:
        """Make a connection for the next request. Raises StoreUnavailable."""
        idle = self.idle
        self.put_back(await self._connect(min(until, _now() + DIAL_WITHIN)), idle)

    def detach(self) -> None:
        self.packer.detach()
        self.hub.detach()
        super().detach()


class RedisStore(BlockingTogether[BlockingRunner]):
    """A Store (see stores.base). With an idle connection, takes and gives need no plan."""

    def __init__(self, site: RedisSite, packer: Packer) -> None:
        super().__init__(BlockingRunner(site, packer))

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        runner, packer, now = self.operations, self.operations.packer, _now()
        # The list of now: if `let_go` replaces it meanwhile, `put_back` closes the connection.
        idle = runner.idle
        # Only `runner.take` asks the hub for refusals that need no request. So while any waiter
        # rests, every take goes that way.
        wire = None if runner.hub.resting else self._at_hand(idle, now, ask.ttl)
        if wire is None:
            return run_blocking(runner.take(key, claim, ask, until))
        outcome: TakeOutcome
        try:
            server, deadline = wire.server, until + wire.server.clock_ahead
            request = take_request(packer, key, claim, ask, server.id_and_floor, deadline)
            reply = wire.ask(request, until)
            if type(reply) is bytes:
                outcome = read_take(packer, reply, key, claim, ask, server.epoch)
            else:
                context = ServerContext(runner.site, packer, server)
                program = finish_take(context, key, claim, ask, until, now, reply)
                outcome = run_blocking(run_program(wire, program, until, begun=True))
        except UNUSABLE as error:
            wire.close()
            outcome = run_blocking(runner.again(error, DIALECT.take(key, claim, ask), until))
        except BaseException as error:
            runner.keep_or_close(wire, idle, error)
            raise
        else:
            runner.put_back(wire, idle)
        runner.hub.note_outcome(claim, now, outcome)
        return outcome

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        runner, packer = self.operations, self.operations.packer
        idle = runner.idle
        # A give needs no check of the server: it ends only what it finds there.
        wire = self._at_hand(idle, _now())
        if wire is None:
            return run_blocking(runner.give(key, claim, token, until, parting=parting))
        try:
            reply = wire.ask(give_request(packer, key, claim, token, parting), until)
            outcome = read_give(packer, reply, key)
        except UNUSABLE as error:
            wire.close()
            return run_blocking(
                runner.again(error, DIALECT.give(key, claim, token, parting), until)
            )
        except BaseException as error:
            runner.keep_or_close(wire, idle, error)
            raise
        runner.put_back(wire, idle)
        return outcome

    @staticmethod
    def _at_hand(idle: list[RedisWire], now: float, ttl: float = 0.0) -> RedisWire | None:
        """An idle connection that the server has not closed, or None.

        With a ttl, its server must have been checked just now, and be old enough for such a lease.
        """
        try:
            # Tried, not looked at before: another thread may take the last one in between.
            wire = idle.pop()
        except IndexError:
            return None
        server = wire.server
        if (ttl and (ttl > server.old_enough_for or now - server.unchanged_at > CHECK_EVERY)) or (
            now - wire.used > STALE_AFTER and wire.is_stale(trust=False)
        ):
            # For the runner, which checks its server, or closes it if it is dead.
            idle.append(wire)
            return None
        wire.used = now
        return wire


# -- for layers ------------------------------------------------------------------------------------


class BlockingRedisSide(RedisSide):
    """The side of blocking callers."""

    def runner(self, site: RedisSite, packer: Packer) -> RedisRunner[Any]:
        return BlockingRunner(site, packer)

    async def dial(self, site: RedisSite, until: float) -> AnyWire:
        return dial(site, until, RedisWire)

    async def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    async def gather(
        self, calls: Sequence[Call[T]], until: float, enough: Enough[T] | None = None
    ) -> list[T | StoreError]:
        """See RedisSide.gather. Each has its own thread; if all are wanted, the last needs none."""
        if not calls:
            return []
        outcomes: dict[int, T | Exception] = {}
        ended: list[int] = []
        over, wanted = threading.Event(), enough or at_least(len(calls))

        def run_call(index: int) -> None:
            try:
                outcomes[index] = run_blocking(calls[index](until))
            except Exception as error:  # noqa: BLE001 - any but a StoreError is raised at the end
                raise_if_from_signal(error)
                outcomes[index] = error
            finally:
                ended.append(index)
                # A copy: other threads add to it meanwhile.
                known = list(outcomes.values())
                found = [each for each in known if not isinstance(each, Exception)]
                if len(ended) == len(calls) or wanted(found):
                    over.set()

        last = len(calls) - 1
        run_last_here = enough is None
        for index in range(last if run_last_here else len(calls)):
            _start(partial(run_call, index))
        if run_last_here:
            run_call(last)
        # In slices: after a suspend of the machine, `clock.now` must be read again.
        while not over.wait(min(1.0, max(0.0, until - clock.now()))):
            if clock.now() >= until:
                break
        late = OutcomeUnknown("no answer in time")
        return [_result_of(outcomes.get(index, late)) for index in range(len(calls))]


def _result_of(outcome: T | Exception) -> T | StoreError:
    if isinstance(outcome, Exception) and not isinstance(outcome, StoreError):
        raise outcome
    return outcome


def _start(target: Callable[[], None]) -> None:
    try:
        # A daemon: a server that hangs must not keep the process from ending.
        threading.Thread(target=target, name="incumbent-survey", daemon=True).start()
    except RuntimeError as error:
        raise_if_from_signal(error)
        # The interpreter is ending and starts no threads any more.
        target()
