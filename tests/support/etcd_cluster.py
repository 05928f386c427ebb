"""Three members that agree; one can be killed, frozen, parted from the others or cut off."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from tests.support.etcd import EtcdServer, Place
from tests.support.network import Network
from tests.support.waiting import eventually

__all__ = ["EtcdCluster", "url_of"]

MEMBERS = 3
# Of etcd itself an election takes 1 to 2 s; a machine that runs other tests needs more.
AGREES_WITHIN = 30.0


def url_of(members: Sequence[EtcdServer]) -> str:
    """Some of the members, in this order."""
    return f"etcd://{','.join(member.endpoint for member in members)}?restart_wait=0"


class EtcdCluster:
    """Members with etcd's own settings; `apart` puts them into network namespaces (root only)."""

    def __init__(self, options: Sequence[str] = (), *, apart: bool = False) -> None:
        self._close = ExitStack()
        self.network: Network | None = None
        self.members: list[EtcdServer] = []
        try:
            self._build(options, apart=apart)
        except BaseException:
            self._close.close()
            raise

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self.endpoints)}"

    def store_url(self, first: EtcdServer | None = None) -> str:
        """The store of a test, as of EtcdServer; `first` is whom a client asks first."""
        return url_of(sorted(self.members, key=lambda member: member is not first))

    @property
    def leader(self) -> EtcdServer:
        """Who leads now; waits until one does."""
        eventually(lambda: any(member.leads for member in self.members), AGREES_WITHIN)
        return next(member for member in self.members if member.leads)

    @property
    def followers(self) -> list[EtcdServer]:
        leader = self.leader
        return [member for member in self.members if member is not leader]

    def another_leader(self, than: EtcdServer) -> EtcdServer:
        """Waits until the others have elected one."""
        others = [member for member in self.members if member is not than]
        eventually(lambda: any(member.leads for member in others), AGREES_WITHIN)
        return next(member for member in others if member.leads)

    def part(self, member: EtcdServer) -> None:
        """Its clients reach it, the other members do not."""
        self._network.part(self.members.index(member))

    def join(self, member: EtcdServer) -> None:
        self._network.join(self.members.index(member))

    def unplug(self, member: EtcdServer) -> None:
        """Nobody reaches it, and nobody is told."""
        self._network.unplug(self.members.index(member))

    def plug(self, member: EtcdServer) -> None:
        self._network.plug(self.members.index(member))

    def wait_until_healthy(self) -> None:
        for member in self.members:
            member.wait_until_healthy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close.close()

    # -- inside

    @property
    def _network(self) -> Network:
        assert self.network is not None, "EtcdCluster(apart=True) has a network to cut"
        return self.network

    def _build(self, options: Sequence[str], *, apart: bool) -> None:
        places = [Place() for _ in range(MEMBERS)]
        if apart:
            self.network = self._close.enter_context(Network(MEMBERS))
            places = [
                Place(host=host, namespace=namespace)
                for host, namespace in zip(self.network.hosts, self.network.namespaces, strict=True)
            ]
        names = [f"member-{number}" for number in range(MEMBERS)]
        known = ",".join(f"{name}={place.peer}" for name, place in zip(names, places, strict=True))
        for name, place in zip(names, places, strict=True):
            member = EtcdServer(options, place=place, name=name, cluster=known)
            self.members.append(self._close.enter_context(member))
            member.launch()
        self.wait_until_healthy()
