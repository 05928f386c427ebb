"""Clients: one store and common settings for many locks and elections, blocking and asyncio."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NoReturn, Self, Unpack

from incumbent import clock
from incumbent.durations import Duration
from incumbent.locks.candidacy import ElectionSettings, Metadata
from incumbent.locks.elections import AsyncElection, AsyncTerm, Election, Term
from incumbent.locks.groups import AsyncGroup, Group, GroupSettings
from incumbent.locks.leases import trimmed_traceback
from incumbent.locks.lock import AsyncLock, Lock
from incumbent.locks.options import LockSettings, explain_arguments, overruled, parse_timeout
from incumbent.locks.other_words import refuse_copy, refuse_unknown, refuse_wrong_with
from incumbent.locks.several import (
    AsyncMultiLock,
    AsyncReadWriteLock,
    AsyncSemaphore,
    MultiLock,
    ReadWriteLock,
    Semaphore,
)
from incumbent.locks.shards import AsyncShards, Shards
from incumbent.model import Record
from incumbent.runtime.link import own_link
from incumbent.stores.names import check_prefix, make_key

if TYPE_CHECKING:
    from incumbent.runtime.link import StoreLike


class ClientHandle:
    """One store, one namespace and common settings for many locks."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        refuse_wrong_with(cls)

    @explain_arguments
    def __init__(
        self,
        store: StoreLike | None = None,
        *,
        namespace: str = "default",
        **settings: Unpack[LockSettings],
    ) -> None:
        refuse_unknown(settings, LockSettings)
        make_key(namespace, "x")  # refuses a bad namespace now
        self._link = own_link(store)
        self._namespace = namespace
        self._settings = settings

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.url}>"

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    @property
    def url(self) -> str:
        """The URL of the store, without its password."""
        return self._link.engine.url

    def _with_ours(self, settings: LockSettings) -> Any:
        ours = overruled(self._settings, settings)
        return {"store": self, "namespace": self._namespace, **ours}

    def _of_group(self, settings: GroupSettings) -> Any:
        """Arguments of a group: `settings`, and those of the client that groups have too."""
        given: Any = settings
        ours = overruled(self._settings, given).items()
        common = {name: value for name, value in ours if name in GroupSettings.__annotations__}
        return {"store": self, "namespace": self._namespace, **common, **given}


class Client(ClientHandle):
    """One store, one namespace and common settings for many locks; owns its connections.

    `close` (or leaving the `with` block) ends the renewals: leases that are still held expire.
    """

    @explain_arguments
    def lock(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[LockSettings]
    ) -> Lock:
        """A lock of this client's store and namespace; `settings` overrule the client's."""
        return Lock(name, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        timeout: Duration | None = None,
        **settings: Unpack[LockSettings],
    ) -> Semaphore:
        """A semaphore with this number of `permits`; `settings` overrule the client's."""
        return Semaphore(name, permits, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def read_write_lock(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[LockSettings]
    ) -> ReadWriteLock:
        """A read-write lock of this store and namespace; `settings` overrule the client's."""
        return ReadWriteLock(name, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def multi_lock(
        self,
        names: Collection[str],
        *,
        timeout: Duration | None = None,
        **settings: Unpack[LockSettings],
    ) -> MultiLock:
        """A lock on several names, all or none; `settings` overrule the client's."""
        return MultiLock(names, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def election(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        **settings: Unpack[ElectionSettings[Term]],
    ) -> Election:
        """A candidate in this client's store and namespace; `settings` overrule the client's."""
        return Election(name, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def group(self, name: str, **settings: Unpack[GroupSettings]) -> Group:
        """A group in this client's store and namespace; `settings` overrule the client's."""
        return Group(name, **self._of_group(settings))

    @explain_arguments
    def shards(
        self, name: str, count: int, *, metadata: Metadata = None, **settings: Unpack[GroupSettings]
    ) -> Shards:
        """`count` shards in this client's store and namespace; see `incumbent.Shards`."""
        return Shards(name, count, metadata=metadata, **self._of_group(settings))

    def read(self, name: str, timeout: Duration = 1.0) -> Record:
        """All that the store knows about `name`, for display only. Raises StoreError."""
        with trimmed_traceback:
            return self._link.store.read(make_key(self._namespace, name), _until(timeout))

    def scan(self, prefix: str = "", timeout: Duration = 5.0) -> tuple[Record, ...]:
        """The records of names that begin with `prefix`, for display only. Raises StoreError."""
        with trimmed_traceback:
            return self._link.store.scan(self._namespace, check_prefix(prefix), _until(timeout))

    def close(self) -> None:
        """End the renewals and close the connections."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(ClientHandle):
    """One store, one namespace and common settings for many locks; see `incumbent.Client`."""

    @explain_arguments
    def lock(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[LockSettings]
    ) -> AsyncLock:
        """A lock of this client's store and namespace; `settings` overrule the client's."""
        return AsyncLock(name, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        timeout: Duration | None = None,
        **settings: Unpack[LockSettings],
    ) -> AsyncSemaphore:
        """A semaphore with this number of `permits`; `settings` overrule the client's."""
        return AsyncSemaphore(name, permits, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def read_write_lock(
        self, name: str, *, timeout: Duration | None = None, **settings: Unpack[LockSettings]
    ) -> AsyncReadWriteLock:
        """A read-write lock of this store and namespace; `settings` overrule the client's."""
        return AsyncReadWriteLock(name, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def multi_lock(
        self,
        names: Collection[str],
        *,
        timeout: Duration | None = None,
        **settings: Unpack[LockSettings],
    ) -> AsyncMultiLock:
        """A lock on several names, all or none; `settings` overrule the client's."""
        return AsyncMultiLock(names, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def election(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        **settings: Unpack[ElectionSettings[AsyncTerm]],
    ) -> AsyncElection:
        """A candidate in this client's store and namespace; `settings` overrule the client's."""
        return AsyncElection(name, timeout=timeout, **self._with_ours(settings))

    @explain_arguments
    def group(self, name: str, **settings: Unpack[GroupSettings]) -> AsyncGroup:
        """A group in this client's store and namespace; `settings` overrule the client's."""
        return AsyncGroup(name, **self._of_group(settings))

    @explain_arguments
    def shards(
        self, name: str, count: int, *, metadata: Metadata = None, **settings: Unpack[GroupSettings]
    ) -> AsyncShards:
        """`count` shards in this client's store and namespace; see `incumbent.Shards`."""
        return AsyncShards(name, count, metadata=metadata, **self._of_group(settings))

    async def read(self, name: str, timeout: Duration = 1.0) -> Record:
        """Everything that the store knows about `name`: for display, never for decisions."""
        key = make_key(self._namespace, name)
        with trimmed_traceback:
            return await self._link.async_port().read(key, _until(timeout))

    async def scan(self, prefix: str = "", timeout: Duration = 5.0) -> tuple[Record, ...]:
        """The records of all names that begin with `prefix`: for display, never for decisions."""
        self._link.async_port()
        within = (check_prefix(prefix), _until(timeout))
        with trimmed_traceback:
            return await self._link.engine.async_store().scan(self._namespace, *within)

    async def aclose(self) -> None:
        """End the renewals and close the connections."""
        await self._link.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _until(timeout: Duration) -> float:
    return clock.now() + (parse_timeout(timeout) or 0.0)
