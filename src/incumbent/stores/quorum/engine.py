"""The engine of a quorum: makes its blocking and its asynchronous side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from incumbent.model import Capabilities
from incumbent.stores.loops import ServerEngine
from incumbent.stores.quorum.ballots import BallotClock
from incumbent.stores.quorum.dialect import QuorumDialect
from incumbent.stores.quorum.doctor import diagnose
from incumbent.stores.quorum.nodes import Node, Quorum
from incumbent.stores.quorum.sync import QuorumStore
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.site import Site

if TYPE_CHECKING:
    from incumbent.stores.quorum.aio import AsyncQuorumStore


class QuorumEngine(ServerEngine[QuorumStore, "AsyncQuorumStore"]):
    """`sites`: the nodes; `members`: the fingerprint of their list."""

    capabilities = Capabilities(
        waits="pubsub",
        ttl_clock="wall",
        refuses_late=True,
        survives_failover=True,
        candidates=True,
        reservations=True,
    )

    def __init__(
        self, sites: Sequence[Site], where: str, members: str, template: str | None = None
    ) -> None:
        dialect = QuorumDialect(Naming(template), members, sites[0].restart_wait, where)
        names = tuple(site.where.rpartition("@")[2].rpartition("://")[2] for site in sites)
        self._quorum = quorum = Quorum(dialect, BallotClock(len(sites)), names, where)
        self._nodes = nodes = [Node(index, site) for index, site in enumerate(sites)]

        def make() -> AsyncQuorumStore:
            # Imported only now: the blocking side has no use for asyncio.
            from incumbent.stores.quorum.aio import AsyncQuorumStore

            return AsyncQuorumStore(quorum, nodes)

        super().__init__(where, QuorumStore(quorum, nodes), make)

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose. Looks at each node, also at one that would be refused."""
        return diagnose(self._quorum, self._nodes, ttl, until)
