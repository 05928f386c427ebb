"""A process's link to one engine: a keeper, a port for blocking callers, a port for each loop.

`link_for` finds the link for a user's `store=`; the types that `store=` accepts come last.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from incumbent import clock
from incumbent.errors import Misuse
from incumbent.runtime.keeper import Keeper
from incumbent.stores.base import Engine
from incumbent.stores.url import engine_for_object, open_engine, store_url

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Hashable

    from incumbent.lease import Proof
    from incumbent.model import Key, Notice
    from incumbent.policy import Policy
    from incumbent.protocol.claim import Claim
    from incumbent.runtime.aio import AsyncPort

    _Latest = tuple[Callable[[], AbstractEventLoop], weakref.ref[AbstractEventLoop], AsyncPort]


class Link:
    """One engine's store, keeper and ports in this process.

    Two links with equal `identity` lead to the same store.
    """

    def __init__(self, engine: Engine, url: str = "") -> None:
        self.engine = engine
        # Each engine of `memory:` has leases of its own, whatever its URL.
        apart = not url or url.startswith("memory:")
        self.identity: Hashable = id(engine) if apart else (url, engine.url)
        self.store = engine.store()
        self.keeper = Keeper(self.store)
        self.port = self.keeper.port
        self.client_end = self.keeper.end
        self._loops: weakref.WeakKeyDictionary[AbstractEventLoop, AsyncPort] = (
            weakref.WeakKeyDictionary()
        )
        self._latest: _Latest | None = None

    @property
    def _link(self) -> Link:
        """This link; clients have the same property, so a link can be passed as a client."""
        return self

    def async_port(self) -> AsyncPort:
        """The port of the running event loop. Raises Misuse if asyncio runs none."""
        latest = self._latest
        if latest is not None:
            running, loop, port = latest
            try:
                if loop() is running():
                    return port
            except RuntimeError:
                pass
        return self._find_port()

    def _find_port(self) -> AsyncPort:
        # Imported only here, because blocking code does not need asyncio.
        from asyncio import get_running_loop

        from incumbent.runtime.aio import AsyncPort

        try:
            loop = get_running_loop()
        except RuntimeError:
            raise Misuse(
                "the asyncio side needs a running event loop of asyncio: under trio call the"
                " blocking side in a thread, as trio.to_thread.run_sync does"
            ) from None
        port = self._loops.get(loop)
        if port is None:
            port = self._loops[loop] = AsyncPort(self.engine.async_store(), self.keeper)
        # One assignment: threads with other loops read all of it, or all of the one before.
        self._latest = (get_running_loop, weakref.ref(loop), port)
        return port

    def close(self) -> None:
        """End the keeper, close the blocking connections; leases are not given back."""
        self.client_end.close()
        try:
            if None in self.client_end.waits.values():
                self.store.close()
            # Before the store: the debts are paid on its connections.
            self.keeper.close()
        finally:
            self.store.close()

    async def aclose(self) -> None:
        """`close`, which also closes the running loop's connections."""
        # First: who waits must not connect anew.
        self.client_end.close()
        await self.engine.async_store().aclose()
        self.close()


# Each write is one step without a lock: a signal handler or a fork's child could find it locked.
_by_url: Final[dict[str, Link]] = {}
_by_object: Final[weakref.WeakKeyDictionary[object, Link]] = weakref.WeakKeyDictionary()


def link_for(store: StoreLike | None) -> Link:
    """The shared link of a URL or driver object, a client's own link, or (None) the default.

    Raises ConfigError if `store` cannot be a store, or if the default would be unsafe.
    """
    if store is None:
        store = store_url()
    if isinstance(store, str):
        # Two threads may each make one. The first stays; the other is dropped unused.
        return _by_url.get(store) or _by_url.setdefault(store, new_link(store))
    own = getattr(store, "_link", None)
    if isinstance(own, Link):
        return own
    # Checked before it becomes a key: an object that is no store is refused here.
    engine_for_object(store)
    return _by_object.get(store) or _by_object.setdefault(store, new_link(store))


def own_link(store: StoreLike | None) -> Link:
    """An unshared link that the caller may close, or the client's own link if `store` is a client.

    Raises as `link_for`.
    """
    own = getattr(store, "_link", None)
    return own if isinstance(own, Link) else new_link(store_url() if store is None else store)


def new_link(store: object) -> Link:
    if isinstance(store, str):
        return Link(open_engine(store), store)
    return Link(engine_for_object(store))


# -- the lease of a link -------------------------------------------------------------------------


def ignore() -> None:
    """Do nothing: the callback of a renewal that nobody waits for."""


class LeaseView:
    """What this process knows of a lease and may do to it; for the rest of this package."""

    __slots__ = ("_claim", "link")

    def __init__(self, link: Link, claim: Claim) -> None:
        self.link: Final = link
        self._claim = claim

    @property
    def key(self) -> Key:
        """The name and its namespace."""
        return self._claim.wanted.key

    @property
    def claim_id(self) -> str:
        """The identifier of this holding in the store."""
        return self._claim.id

    @property
    def slot(self) -> str | None:
        """The slot that was claimed with the lease."""
        return self._claim.wanted.slot

    @property
    def policy(self) -> Policy:
        """The times that the lease was taken with."""
        return self._claim.wanted.policy

    @property
    def at_most_until(self) -> float:
        """The instant at which at_most_for ends the holding; inf without it."""
        return self._claim.machine.at_most_until

    @property
    def notice(self) -> Notice | None:
        """The notice in the store that ended the lease; None if none did."""
        return self._claim.notice

    @property
    def answered(self) -> bool:
        """Whether the store answered the last renewal."""
        return self._claim.failures == 0

    @property
    def proof(self) -> Proof:
        """The proof at this instant."""
        return self._claim.machine.proof(clock.now())

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended`, from any thread, when the lease ends; it must not block."""
        self.link.keeper.watch(self._claim, ended)

    def watch_renewals(self, proved: Callable[[], None]) -> None:
        """Call `proved` in the keeper's thread after each proved renewal; it must not block."""
        self.link.keeper.watch_renewals(self._claim, proved)

    def proclaim(self, meta: bytes, *, after: float = 0.0) -> None:
        """Change the record's metadata, by an extra renewal at most `after` seconds from now."""
        self._claim.proclaim(meta)
        if self._claim.machine.valid(clock.now()):
            self.link.keeper.renew_now(self._claim, ignore, after=after)

    def leave_to_ttl(self) -> None:
        """Neither renew nor release: some work still runs, so only the ttl may end the lease."""
        if self._claim.machine.valid(clock.now()):
            self._claim.machine.note_leaving()
        self.link.keeper.disarm(self._claim)


# -- the types of `store=` -------------------------------------------------------------------------

# A protocol for each driver class, so that no driver is imported: type checkers compare attributes.
# Building a lock finds out whether the object is usable.


class Linked(Protocol):
    """A Client or AsyncClient, whose store and connections are shared."""

    @property
    def _link(self) -> Link: ...


class RedisClient(Protocol):
    """A redis-py client of one server or of a Sentinel's master, blocking or for asyncio."""

    @property
    def connection_pool(self) -> object: ...


class RedisPool(Protocol):
    """A connection pool of redis-py."""

    @property
    def connection_class(self) -> object: ...
    @property
    def connection_kwargs(self) -> object: ...


class RedisClusterClient(Protocol):
    """A redis-py client of a cluster, blocking or for asyncio."""

    @property
    def nodes_manager(self) -> object: ...


class PostgresPool(Protocol):
    """A pool of psycopg_pool, blocking or for asyncio."""

    @property
    def conninfo(self) -> object: ...
    @property
    def kwargs(self) -> object: ...


class SqlalchemyEngine(Protocol):
    """An engine of SQLAlchemy, blocking or for asyncio."""

    @property
    def url(self) -> object: ...
    @property
    def dialect(self) -> object: ...


StoreLike: TypeAlias = (
    str
    | Engine
    | Linked
    | RedisClient
    | RedisPool
    | RedisClusterClient
    | PostgresPool
    | SqlalchemyEngine
)
