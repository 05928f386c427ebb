"""The connections to a server: try an idle one once, then retry on a fresh one.

Both sides share these coroutines. The asynchronous side awaits them. The blocking side runs each
in one step (`stores.plan.run_blocking`), with connections that block instead of suspending.

Connections are taken off a list and put back: `list.pop` and `list.append` are atomic, so there is
no lock on which a signal handler or `__del__` could hang; re-entry uses another connection.
A BaseException that interrupts an exchange closes its connection.

A server may refuse a request for a moment: a transaction that it could not order, a row that was
locked, more requests than it takes. Then nothing was done, and `until_served` asks again. A refusal
that lasts (a full disk, a replica) is raised.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from incumbent import clock
from incumbent.chance import draw_jitter
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Gone
from incumbent.stores.plan import Plan, Planned


class Broken(Exception):
    """A connection failed. `sent`: the request may have left. `late`: there is no time left."""

    def __init__(self, why: str, *, sent: bool, late: bool = False) -> None:
        super().__init__(why)
        self.sent = sent
        self.late = late


class Ended(Broken):
    """The server closed the connection."""

    def __init__(self) -> None:
        super().__init__("the server closed the connection", sent=True)


class Mismatch(Exception):
    """The answer belongs to another request, or has another shape; the connection is unusable."""


@contextmanager
def decoding() -> Iterator[None]:
    """Raise Mismatch if the body, which reads an answer, finds another shape than it expects.

    Only reading belongs in the body: an error of our own code must not pass for the server's.
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise_if_from_signal(error)
        raise Mismatch(f"an answer of another shape was expected: {error}") from error


class Connection(Protocol):
    """One connection, blocking or asynchronous."""

    @property
    def closed(self) -> bool:
        """Whether it is known to be unusable, without a check of the socket."""

    def is_stale(self, *, trust: bool) -> bool:
        """Whether the server closed it. `trust`: do not check a connection that was just used."""

    def close(self) -> None:
        """Close at once, without writing anything."""

    def detach(self) -> None:
        """In a fork's child: release the descriptor; the parent's connection stays open."""


T = TypeVar("T")
W = TypeVar("W", bound=Connection)
Facts = TypeVar("Facts")


KEPT: Final = 64
"""Most unused connections that are kept."""
# Seconds: a refusal that asks for a longer pause is not for a moment.
_SOON: Final = 0.5
# Full jitter alone would sometimes ask again at once.
_PAUSE_LEAST: Final = 0.01


class Pool(Generic[W]):
    """The connections. `idle`: the unused ones, at most `most`; `all`: all that are alive."""

    def __init__(self, most: int = KEPT) -> None:
        self.most = most
        self.idle: list[W] = []
        self.all: WeakSet[W] = WeakSet()

    def trusted(self, *, trust: bool = True) -> W | None:
        """An idle connection that the server has not closed, or None."""
        while self.idle:
            try:
                # The one that was used last: the server is least likely to have closed it, and a
                # burst's surplus stays at the other end, unused.
                wire = self.idle.pop()
            except IndexError:
                break  # another thread took the last one
            if not wire.is_stale(trust=trust):
                return wire
            wire.close()
        return None

    def put_back(self, wire: W, idle: list[W]) -> None:
        """Keep a connection after its use; `idle` is what `self.idle` was before it."""
        # `self.idle` is another list by now if the store was closed, or in a fork's child.
        if idle is self.idle and len(idle) < self.most and not wire.closed:
            idle.append(wire)
        else:
            wire.close()

    def let_go(self) -> None:
        """Close the idle connections; those in use are closed when they are put back."""
        # Another list: by that `put_back` notices that a connection is from before.
        idle, self.idle = self.idle, []
        close_all(idle)

    def detach(self) -> None:
        """In a fork's child: detach all connections. The threads that used some are not here."""
        wires, self.idle, self.all = list(self.all), [], WeakSet()
        for wire in wires:
            wire.detach()


def close_all(wires: list[W]) -> None:
    """Empty the list, and close its connections."""
    while wires:
        try:
            wire = wires.pop()
        except IndexError:
            break
        wire.close()


class PlanRunner(Pool[W], Planned[Facts]):
    """Carries out plans on its connections to one server, `where`.

    carry   is a connection idle? -- yes --> use -- it was dead --> again
              |                                                       | may be repeated
              `-- no ------> fresh, then use <------------------------'
    use     carry_out, then put_back, or keep_or_close after an error
    """

    unusable: tuple[type[Exception], ...] = (Broken, Mismatch)
    """The exceptions of a connection that brought no reply, or another request's reply."""

    def __init__(self, where: str, most: int = KEPT) -> None:
        super().__init__(most)
        self.where = where

    @abstractmethod
    async def carry_out(self, wire: W, plan: Plan[Facts, T], until: float) -> T:
        """The outcome of a plan on this connection. Raises StoreError or an `unusable` one."""

    @abstractmethod
    async def fresh(self, plan: Plan[Facts, T], until: float) -> W:
        """A new connection for a plan. Raises StoreUnavailable, at `until` at the latest."""

    async def carry(self, plan: Plan[Facts, T], until: float) -> T:
        """Carry out a plan on an idle connection, and on a fresh one if the idle one was dead."""
        idle = self.idle
        # A dead connection would leave a plan in doubt that must not be repeated: check it first.
        wire = self.trusted(trust=plan.repeatable)
        if wire is None:
            return await self._afresh(plan, until)
        try:
            return await self.use(wire, plan, until, idle)
        except self.unusable as error:
            return await self.again(error, plan, until)

    async def use(self, wire: W, plan: Plan[Facts, T], until: float, idle: list[W]) -> T:
        """Carry out a plan on this connection, then keep or close it.

        `idle`: what `self.idle` was before the connection was made or taken. After `let_go` the
        store may use another server: a connection to the old one must not be kept.
        """
        try:
            outcome = await self.carry_out(wire, plan, until)
        except BaseException as error:
            # Also after an interruption: half an answer may be on its way, and would be the next
            # one's.
            self.keep_or_close(wire, idle, error)
            raise
        self.put_back(wire, idle)
        return outcome

    def keep_or_close(self, wire: W, idle: list[W], error: BaseException) -> None:
        """After `error`: close the connection, or keep it if it can serve again."""
        wire.close()

    async def again(self, error: Exception, plan: Plan[Facts, T], until: float) -> T:
        """Carry out the plan on a fresh connection, if it may be repeated after `error`."""
        doubt = not isinstance(error, Broken) or error.sent
        if not isinstance(error, Broken) or error.late or (doubt and not plan.repeatable):
            raise exchange_error(error, self.where) from error.__cause__ or error
        # The cause (a restart, a cut network) also broke the other idle connections.
        close_all(self.idle)
        try:
            outcome = await self._afresh(plan, until)
        except StoreUnavailable as second:
            # "Not sent" is true of the second try only: the first one may have been carried out.
            if doubt:
                raise still_in_doubt(second, self.where) from second
            raise
        return outcome_of_repeat(outcome, self.where) if doubt else outcome

    async def _afresh(self, plan: Plan[Facts, T], until: float) -> T:
        # Read before dialling: a `let_go` meanwhile then shows, and the connection is not kept.
        idle = self.idle
        wire = await self.fresh(plan, until)
        try:
            return await self.use(wire, plan, until, idle)
        except self.unusable as error:
            raise exchange_error(error, self.where) from error.__cause__ or error


def exchange_error(error: Exception, where: str) -> StoreError:
    """The exception for an exchange that brought no reply, or another request's reply."""
    if isinstance(error, Broken) and not error.sent:
        return StoreUnavailable(f"{where} cannot be reached: {error}")
    return OutcomeUnknown(f"{where} gave no usable answer ({error}); perhaps it did what was asked")


def still_in_doubt(error: StoreUnavailable, where: str) -> OutcomeUnknown:
    """The exception for a repeat that was not carried out, after a first try that perhaps was."""
    return OutcomeUnknown(
        f"{where} gave no answer to the first try, and the second failed: {error}",
        permanent=error.permanent,
        retry_after=error.retry_after,
    )


def outcome_of_repeat(outcome: T, where: str) -> T:
    """The outcome of a repeated request. Raises OutcomeUnknown if the first try may have caused it.

    A repeated release that finds no lease is not Gone, which would mean that the lease was lost.
    """
    if isinstance(outcome, Gone):
        raise OutcomeUnknown(
            f"{where}: the first release got no answer and the second found no such lease: it was"
            " given back, or it was lost before"
        )
    return outcome


async def until_served(
    ask: Callable[[], Awaitable[T]], until: float, rest: Callable[[float], Awaitable[object]]
) -> T:
    """The outcome of `ask`, called again after a refusal for a moment, with full jitter.

    `rest`: waits until an instant. Raises what `ask` raises; the refusal if no time is left for
    another one: a try that is cut off would leave in doubt what is certainly not done.
    """
    refusal: StoreUnavailable | None = None
    while True:
        began = clock.now()
        try:
            return await ask()
        except StoreUnavailable as error:
            now = clock.now()
            again = now + max(_PAUSE_LEAST, draw_jitter() * (error.retry_after or 0.0))
            # The server's own refusal says more than that no time was left for another try.
            if refusal is not None and now >= until:
                raise refusal from error
            after = error.retry_after
            brief = after is not None and after <= _SOON and not error.permanent
            if not brief or again + (now - began) >= until:
                raise
            refusal = error
        while clock.now() < again:
            await rest(again)
