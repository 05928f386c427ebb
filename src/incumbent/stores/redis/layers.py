"""What stands between a caller and the connections, where there is more than one server to find.

A layer is written once, as coroutines over the connections to each server (or over another layer),
and wraps `run`. The asynchronous side awaits them; the blocking side runs each in one step.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Granted, Key
from incumbent.net.pool import exchange_error
from incumbent.protocol.port import run
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import DIALECT, JoinedPlan, Server, give_back
from incumbent.stores.redis.exchange import UNUSABLE, AnyWire, Exchange, carry_out
from incumbent.stores.redis.options import RedisOptions
from incumbent.stores.redis.resp import Program, Step, each_step, milliseconds, pack
from incumbent.stores.redis.server import Site
from incumbent.stores.redis.sync import BlockingExchange
from incumbent.stores.redis.wire import dial

T = TypeVar("T")

Work: TypeAlias = Callable[[float], Coroutine[Any, Any, T]]
"""Something to do by an instant. Raises StoreError."""
Enough: TypeAlias = Callable[[Sequence[T]], bool]
"""Whether these results will do."""


def at_least(count: int) -> Enough[Any]:
    """So many results will do."""
    return lambda results: len(results) >= count


class Layer(PlannedTogether[Server]):
    """Passes everything on. Subclasses do what has to be done before and after."""

    dialect = DIALECT

    def __init__(self, inner: PlannedTogether[Server]) -> None:
        self.inner = inner

    async def run(self, plan: Plan[Server, T], until: float) -> T:
        return await self.inner.run(plan, until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await self.inner.wait_change(key, seen, until)

    def let_go(self) -> None:
        self.inner.let_go()


class View(Protocol):
    """What is known of where the servers are, with `advice` for when they cannot be found."""

    advice: str

    @property
    def summary(self) -> str:
        """For the doctor."""

    def masters(self) -> list[tuple[str, Site]]:
        """Those that are known, each with its name if there are several."""

    @property
    def stale(self) -> bool:
        """Whether the servers have to be asked again."""

    async def ask(self, side: Side, until: float) -> object:
        """Ask them. Raises StoreUnavailable."""


class Side(ABC):
    """How one side, blocking or asynchronous, does what the layers need of the world."""

    @abstractmethod
    def exchange(self, site: Site, commands: Commands) -> Exchange[Any]:
        """The connections to one server."""

    @abstractmethod
    async def dial(self, site: Site, until: float) -> AnyWire:
        """A connection that is logged in. Raises StoreUnavailable."""

    @abstractmethod
    async def together(
        self, works: Sequence[Work[T]], until: float, enough: Enough[T] | None = None
    ) -> list[T | StoreError]:
        """What becomes of each work; all are done at once.

        Ends as soon as the results are `enough`. One that takes all its time leaves the others
        theirs. Raises whatever a work raises that is no StoreError.
        """

    @abstractmethod
    async def pause(self, seconds: float) -> None:
        """Wait, and let others work meanwhile."""

    async def update(self, view: View, until: float) -> None:
        """Ask again where the servers are, if the view is stale. Threads do so each for itself."""
        if view.stale:
            await view.ask(self, until)

    async def survey(
        self,
        sites: Sequence[Site],
        program: Callable[[Site], Program[T]],
        enough: Enough[T],
        until: float,
    ) -> list[T | StoreError]:
        """Ask all of them the same, each by a connection of its own, until answers are `enough`.

        Raises nothing: each may be asked by a thread or task of its own.
        """
        works = [partial(self._ask, site, program) for site in sites]
        return await self.together(works, until, enough)

    async def _ask(self, site: Site, program: Callable[[Site], Program[T]], until: float) -> T:
        try:
            wire = await self.dial(site, until)
            try:
                return await carry_out(wire, program(site), until)
            finally:
                wire.close()
        except StoreError:
            raise
        except UNUSABLE as error:
            raise exchange_error(error, site.where) from error
        except Exception as error:
            raise OutcomeUnknown(f"{site.where} could not be asked: {error!r}") from error


class BlockingSide(Side):
    """See Side."""

    def exchange(self, site: Site, commands: Commands) -> Exchange[Any]:
        return BlockingExchange(site, commands)

    async def dial(self, site: Site, until: float) -> AnyWire:
        return dial(site, until)

    async def pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    async def together(
        self, works: Sequence[Work[T]], until: float, enough: Enough[T] | None = None
    ) -> list[T | StoreError]:
        """See Side.together. Each on a thread of its own; if all are wanted, the last is not."""
        outcomes: dict[int, T | Exception] = {}
        ended: list[int] = []
        over, wanted = threading.Event(), enough or at_least(len(works))

        def do(at: int) -> None:
            try:
                outcomes[at] = run(works[at](until))
            except Exception as error:  # noqa: BLE001 - what is no StoreError is raised at the end
                outcomes[at] = error
            finally:
                ended.append(at)
                known = list(outcomes.values())
                found = [each for each in known if not isinstance(each, Exception)]
                if len(ended) == len(works) or wanted(found):
                    over.set()

        threads = len(works) if enough else len(works) - 1
        for at in range(threads):
            _start(partial(do, at))
        for at in range(threads, len(works)):
            do(at)
        # In slices: a thread that was frozen with the machine must see the real clock.
        while not over.wait(min(1.0, max(0.0, until - clock.now()))):
            if clock.now() >= until:
                break
        late = OutcomeUnknown("no answer in time")
        return [_settled(outcomes.get(at, late)) for at in range(len(works))]


def _settled(outcome: T | Exception) -> T | StoreError:
    if isinstance(outcome, Exception) and not isinstance(outcome, StoreError):
        raise outcome
    return outcome


def _start(work: Callable[[], None]) -> None:
    try:
        threading.Thread(target=work, name="incumbent-survey", daemon=True).start()
    except RuntimeError:
        # The interpreter is ending and starts no threads any more.
        work()


_now = clock.now
_SHARE: Final = 0.5
"""Of the time that is left, at most this goes to waiting: a grant may have to be given back."""


# -- replicas that must confirm (`wait_replicas`) --------------------------------------------------
#
# WAIT tells how many replicas have received everything that was written before it. A grant that too
# few of them have is given back; a renewal that too few of them have proves nothing.


def connections(
    options: RedisOptions, site: Site, commands: Commands, side: Side
) -> PlannedTogether[Server]:
    """The connections to one server, and the replicas that have to confirm what it grants."""
    exchange = side.exchange(site, commands)
    if options.wait_replicas:
        return Confirmed(exchange, options.wait_replicas, options.wait_timeout)
    return exchange


class Confirmed(Layer):
    """Asks `replicas` replicas for at most `patience` seconds."""

    def __init__(self, exchange: PlannedTogether[Server], replicas: int, patience: float) -> None:
        super().__init__(exchange)
        self._replicas = replicas
        self._patience = patience

    async def run(self, plan: Plan[Server, T], until: float) -> T:
        """See Planned.run. A grant that is not confirmed is none, and is given back.

        Raises OutcomeUnknown if a renewal is not confirmed.
        """
        confirmed: Any = plan
        if plan.kind == "take":
            confirmed = replace(plan, start=partial(self._take, plan))
        elif plan.kind == "renew":
            confirmed = replace(plan, start=partial(self._renew, plan))
        outcome: T = await self.inner.run(confirmed, until)
        return outcome

    def _take(self, plan: Plan[Server, T], server: Server, until: float) -> Program[T]:
        outcome = yield from plan.start(server, until)
        takes: Any = [(plan, outcome)]
        if isinstance(plan, JoinedPlan):
            takes = zip(plan.parts, cast("list[Any]", outcome), strict=True)
        granted = [(take, grant) for take, grant in takes if isinstance(grant, Granted)]
        if not granted:
            return outcome
        (confirmed,) = yield self._step(b"", 0, until)
        if self._are_enough(confirmed):
            return outcome
        for take, grant in granted:
            yield from give_back(server.commands, take.keys[0], grant, take.ask)
        few = self._too_few(confirmed, server.site.where)
        raise StoreUnavailable(f"{few}: the grant was given back", retry_after=0.1)

    def _renew(self, plan: Plan[Server, T], server: Server, until: float) -> Program[T]:
        """The same, where each step counts only once enough replicas have it."""

        def ask(step: Step) -> Program[list[Any]]:
            *answers, confirmed = yield self._step(step.payload, step.answers, until)
            if not self._are_enough(confirmed):
                few = self._too_few(confirmed, server.site.where)
                raise OutcomeUnknown(f"{few}: this proves nothing")
            return answers

        return each_step(plan.start(server, until), ask)

    def _step(self, payload: bytes, answers: int, until: float) -> Step:
        patience = min(self._patience, max(0.0, until - _now()) * _SHARE)
        return Step(payload + pack("WAIT", self._replicas, milliseconds(patience)), answers + 1)

    def _are_enough(self, confirmed: Any) -> bool:
        return isinstance(confirmed, int) and confirmed >= self._replicas

    def _too_few(self, confirmed: Any, where: str) -> str:
        if not isinstance(confirmed, int):
            return f"{where} could not say how many replicas have it ({confirmed})"
        return (
            f"{where}: {confirmed} of {self._replicas} replicas had it within"
            f" {say_seconds(self._patience)} (wait_replicas)"
        )
