"""The engine of a quorum, its blocking side (`operations`), and a fast path for take and give."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from incumbent import meters
from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.model import (
    PLAIN,
    Ask,
    Capabilities,
    GiveOutcome,
    Granted,
    Key,
    Parting,
    Released,
    TakeOutcome,
)
from incumbent.net.limiter import PLACES, limits
from incumbent.net.pool import KEPT, Mismatch, close_all, exchange_error
from incumbent.net.readers import BLOCKING, ThreadWakeup
from incumbent.stores.loops import ServerEngine, detach_in_child
from incumbent.stores.plan import BlockingStore, Plan, run_blocking
from incumbent.stores.quorum.ballots import BallotClock
from incumbent.stores.quorum.changes import found
from incumbent.stores.quorum.connecting import LONGEST
from incumbent.stores.quorum.dialect import QuorumDialect
from incumbent.stores.quorum.doctor import diagnose
from incumbent.stores.quorum.links import TRUSTED, LinkDialer, SyncPanel
from incumbent.stores.quorum.nodes import Enough, Panel, Quorum, QuorumNode, Reply, agreed_by_most
from incumbent.stores.quorum.operations import QuorumOperations, await_program
from incumbent.stores.quorum.take import give, is_decided, take
from incumbent.stores.redis.incarnation import CHECK_EVERY
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.site import RedisSite

if TYPE_CHECKING:
    from incumbent.stores.quorum.aio import AsyncQuorumStore

T = TypeVar("T")
U = TypeVar("U")

_GIVEN: Final = b":1\r\n"
_RELEASED: Final = Released()


class _Blocking(QuorumOperations):
    """Operations whose coroutines never suspend.

    Panels are taken off a list and put back: `list.pop` and `list.append` are atomic, so there is
    no lock that a signal handler or `__del__` could meet. Re-entrant calls use another panel.
    """

    dialer: LinkDialer

    def __init__(self, quorum: Quorum, nodes: list[QuorumNode]) -> None:
        super().__init__(quorum, BLOCKING)
        self.dialer = LinkDialer(quorum, nodes)
        self.idle: list[SyncPanel] = []
        self.limits = limits(
            quorum.where, PLACES, ThreadWakeup, lambda: self.idle, self._keep_another
        )

    async def _keep_another(self, until: float) -> None:
        """Make connections for the next request, which says why if there is no majority."""
        idle, panel, end = self.idle, SyncPanel(self.dialer), min(until, _now() + LONGEST)
        await panel.open(end)
        # The request that takes this panel does not look whether the servers are new.
        await found(panel, end)
        panel.rested()
        self.put_back(panel, idle)

    async def run(self, plan: Plan[Panel, T], until: float) -> T:
        idle = self.idle
        try:
            panel = idle.pop()
        except IndexError:
            panel = SyncPanel(self.dialer)
        try:
            await panel.open(until)
            outcome = await await_program(plan.start(panel, until))
        except BaseException as error:
            self.interrupted(panel, idle, error)
            raise
        panel.rested()
        self.put_back(panel, idle)
        return outcome

    def interrupted(self, panel: SyncPanel, idle: list[SyncPanel], error: BaseException) -> None:
        """After an error: keep the panel if it can serve again."""
        if isinstance(error, StoreError):
            # All replies were read, or are known to be missing.
            panel.rested()
            self.put_back(panel, idle)
            return
        # Interrupted, perhaps between a request and its reply.
        panel.close()
        if isinstance(error, Mismatch):
            raise exchange_error(error, self.quorum.where) from error

    def put_back(self, panel: SyncPanel, idle: list[SyncPanel]) -> None:
        """Keep the panel for the next operation."""
        # If the list is another one now, the store was closed, or this is a forked child.
        if idle is self.idle and len(idle) < KEPT:
            idle.append(panel)
        else:
            panel.close()

    def let_go(self) -> None:
        idle, self.idle = self.idle, []
        # Each is taken off the list first: what another thread takes meanwhile is its own.
        close_all(cast("list[Any]", idle))
        self.dialer.let_go()
        self.hub.let_go()

    def detach(self) -> None:
        """In a forked child: close the descriptors. Panels in use are of the parent's threads."""
        self.idle = []
        self.dialer.forget()
        self.hub.detach()


class QuorumStore(BlockingStore[_Blocking]):
    """A quorum as a Store (stores.base). Take and give are faster if all nodes just replied."""

    def __init__(self, quorum: Quorum, nodes: list[QuorumNode]) -> None:
        super().__init__(_Blocking(quorum, nodes))
        self._quorum = quorum
        self._epoch = quorum.epoch
        detach_in_child(self.operations)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        quorum = self._quorum
        # A claim whose votes are being taken back needs a ballot above these votes.
        is_simple = ask.slot is None and not quorum.is_in_doubt(key, claim)
        idle = self.operations.idle
        wait = quorum.dialect.wait_of(ask.ttl)
        panel = self._whole(wait, until, CHECK_EVERY) if is_simple else None
        if panel is None:
            return super().take(key, claim, ask, until)
        ballot = quorum.clock.propose(panel.used)
        request = quorum.dialect.take(key, claim, ask, ballot)
        vote = b"incumbent1 %b %d" % (claim.encode(), ballot)
        return self._ask_identical(
            *(panel, idle, request, b"$%d\r\n%b\r\n" % (len(vote), vote), until),
            lambda replies: is_decided(quorum, replies, claim, ballot, {}),
            Granted(claim, ballot, ask.ttl, self._epoch),
            lambda replies: take(panel, key, claim, ask, until, (ballot, replies)),
        )

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        quorum, idle = self._quorum, self.operations.idle
        is_simple = token is not None and parting.slot is None
        panel = self._whole(0.0, until) if is_simple else None
        if panel is None:
            return super().give(key, claim, token, until, parting=parting)
        ended = quorum.clock.unix_us(panel.used)
        request = quorum.dialect.give(key, claim, token, ended, parting)
        return self._ask_identical(
            *(panel, idle, request, _GIVEN, until, agreed_by_most, _RELEASED),
            lambda replies: give(panel, key, claim, token, until, parting, replies),
        )

    def _ask_identical(
        self,
        panel: SyncPanel,
        idle: list[SyncPanel],
        request: bytes,
        wanted: bytes,
        until: float,
        enough: Enough,
        agreed: T,
        otherwise: Callable[[list[Reply]], Coroutine[Any, Any, U]],
    ) -> T | U:
        """`agreed` if all nodes reply exactly `wanted`; else the outcome of `otherwise`."""
        try:
            replies = panel.ask_identical(request, wanted, until, enough)
            outcome: T | U = agreed
            if replies is not None:
                outcome = run_blocking(otherwise(replies))
                panel.rested()
        except BaseException as error:
            self.operations.interrupted(panel, idle, error)
            raise
        self.operations.put_back(panel, idle)
        return outcome

    def _whole(self, wait: float, until: float, trust: float = inf) -> SyncPanel | None:
        """An idle panel that was whole a moment ago and whose servers are old enough, or None.

        `trust`: seconds for which the last look at the servers' settings and roles counts.
        """
        idle = self.operations.idle
        try:
            panel = idle.pop()
        except IndexError:
            return None
        now = _now()
        if (
            panel.whole
            # A new quorum is founded by the first take: see changes.found.
            and (self._quorum.dialect.founded or not panel.blank)
            and now - panel.used < TRUSTED
            and panel.oldest + wait <= now < until
            and now - panel.unchanged_at < trust
        ):
            # Before the request: what its answer proves may be as old as that.
            panel.used = now
            return panel
        idle.append(panel)
        return None


class QuorumEngine(ServerEngine[QuorumStore, "AsyncQuorumStore"]):
    """The engine of a quorum. `sites`: the nodes; `members`: the fingerprint of their list."""

    capabilities = Capabilities(
        waits="pubsub",
        ttl_clock="wall",
        refuses_late=True,
        survives_restart=True,
        survives_failover=True,
        candidates=True,
        reservations=True,
    )

    def __init__(
        self, sites: Sequence[RedisSite], where: str, members: str, template: str | None = None
    ) -> None:
        dialect = QuorumDialect(Naming(template), members, sites[0].restart_wait, where)
        names = tuple(site.where.rpartition("@")[2].rpartition("://")[2] for site in sites)
        self._quorum = quorum = Quorum(dialect, BallotClock(len(sites)), names, where)
        self._nodes = nodes = [QuorumNode(index, site) for index, site in enumerate(sites)]

        def make() -> AsyncQuorumStore:
            # Imported only now: the blocking side has no use for asyncio.
            from incumbent.stores.quorum.aio import AsyncQuorumStore

            return AsyncQuorumStore(quorum, nodes)

        super().__init__(where, QuorumStore(quorum, nodes), make)
        meters.provide(quorum.members)

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose. Looks at each node, even at a node that would be refused."""
        return diagnose(self._quorum, self._nodes, ttl, until)
