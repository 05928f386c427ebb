"""The blocking side: `exchange` run in one step, and a shorter way for takes and gives."""

from __future__ import annotations

from incumbent import clock
from incumbent.model import PLAIN, Ask, GiveOutcome, Key, Parting, Queued, TakeOutcome
from incumbent.net.limiter import CONNECTIONS, DIAL_WITHIN, limits
from incumbent.net.readers import BLOCKING, LockWakeup
from incumbent.net.wire import STALE_AFTER
from incumbent.protocol.port import run_blocking
from incumbent.stores.loops import detach_in_child
from incumbent.stores.plan import BlockingTogether
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import DIALECT, Server, settle_take
from incumbent.stores.redis.exchange import UNUSABLE, RedisExchange, carry_out
from incumbent.stores.redis.incarnation import LOOK_EVERY
from incumbent.stores.redis.server import RedisSite
from incumbent.stores.redis.wire import RedisWire, dial

_now = clock.now


class BlockingExchange(RedisExchange[RedisWire]):
    """The connections of all threads to one server."""

    def __init__(self, site: RedisSite, commands: Commands) -> None:
        super().__init__(site, commands, BLOCKING)
        self.limits = limits(
            site.where, CONNECTIONS, LockWakeup, lambda: self.idle, self.keep_another
        )
        detach_in_child(self)

    async def dial(self, until: float) -> RedisWire:
        return dial(self.site, until)

    async def keep_another(self, until: float) -> None:
        """Make a connection for the next request. Raises StoreUnavailable."""
        idle = self.idle
        self.put_back(await self._connect(min(until, _now() + DIAL_WITHIN)), idle)

    def detach(self) -> None:
        self.commands.move()
        self.hub.abandon()
        super().detach()


class RedisStore(BlockingTogether[BlockingExchange]):
    """A Store (see stores.base). With an idle connection, takes and gives need no plan."""

    def __init__(self, site: RedisSite, commands: Commands) -> None:
        super().__init__(BlockingExchange(site, commands))

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        exchange, commands, now = self.operations, self.operations.commands, _now()
        idle = exchange.idle
        wire = None if exchange.hub.waits_on else self._at_hand(idle, now, ask.ttl)
        if wire is None:
            return run_blocking(exchange.take(key, claim, ask, until))
        outcome: TakeOutcome
        try:
            request = commands.take(key, claim, ask, wire.sign, until + wire.ahead)
            reply = wire.ask(request, until)
            if type(reply) is bytes:
                outcome = commands.taken(reply, key, claim, ask, wire.epoch)
            else:
                server = Server(exchange.site, commands, wire)
                program = settle_take(server, key, claim, ask, until, now, reply)
                outcome = run_blocking(carry_out(wire, program, until, begun=True))
        except UNUSABLE as error:
            wire.close()
            outcome = run_blocking(exchange.again(error, DIALECT.take(key, claim, ask), until))
        except BaseException as error:
            exchange.settle(wire, idle, error)
            raise
        else:
            exchange.put_back(wire, idle)
        if exchange.hub.asked or type(outcome) is Queued:
            exchange.hub.learn(claim, now, outcome)
        return outcome

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        exchange, commands = self.operations, self.operations.commands
        idle = exchange.idle
        wire = self._at_hand(idle, _now())
        if wire is None:
            return run_blocking(exchange.give(key, claim, token, until, parting=parting))
        try:
            reply = wire.ask(commands.give(key, claim, token, parting), until)
            outcome = commands.given(reply, key)
        except UNUSABLE as error:
            wire.close()
            return run_blocking(
                exchange.again(error, DIALECT.give(key, claim, token, parting), until)
            )
        except BaseException as error:
            exchange.settle(wire, idle, error)
            raise
        exchange.put_back(wire, idle)
        return outcome

    @staticmethod
    def _at_hand(idle: list[RedisWire], now: float, ttl: float = 0.0) -> RedisWire | None:
        """An idle connection that the server has not closed, or None.

        With a ttl, its server must have been checked just now, and be old enough for such a lease.
        """
        try:
            wire = idle.pop()
        except IndexError:
            return None
        if (ttl and (ttl > wire.serves or now - wire.looked > LOOK_EVERY)) or (
            now - wire.used > STALE_AFTER and wire.is_stale(trust=False)
        ):
            idle.append(wire)
            return None
        wire.used = now
        return wire
