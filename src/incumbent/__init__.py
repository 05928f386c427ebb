"""Leases for fleets: at most one instance does the job at a time, and it can prove it."""

from typing import TYPE_CHECKING

from incumbent.errors import (
    AcquireTimeout,
    AlreadyReleased,
    ConfigError,
    Error,
    LeaseLost,
    LockError,
    Misuse,
    NotAcquired,
    NotCandidate,
    NotHeld,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from incumbent.cron.jobs import JobRun, Jobs
    from incumbent.decorators import exclusive, once
    from incumbent.election import Leader
    from incumbent.locks.clients import AsyncClient, Client
    from incumbent.locks.elections import AsyncElection, AsyncTerm, Election, Term
    from incumbent.locks.groups import AsyncGroup, Group, Member
    from incumbent.locks.inside import CurrentLease, current
    from incumbent.locks.leases import AsyncLease, Lease
    from incumbent.locks.lock import AsyncLock, Lock
    from incumbent.locks.several import (
        AsyncMultiLease,
        AsyncMultiLock,
        AsyncReadWriteLock,
        AsyncSemaphore,
        MultiLease,
        MultiLock,
        ReadWriteLock,
        Semaphore,
    )
    from incumbent.locks.shards import AsyncShard, AsyncShards, Shard, Shards
    from incumbent.policy import Policy
    from incumbent.runtime.link import StoreLike
    from incumbent.stores.names import safe_name

    __version__: str
    """The version of the package."""

__all__ = [
    "AcquireTimeout",
    "AlreadyReleased",
    "AsyncClient",
    "AsyncElection",
    "AsyncGroup",
    "AsyncLease",
    "AsyncLock",
    "AsyncMultiLease",
    "AsyncMultiLock",
    "AsyncReadWriteLock",
    "AsyncSemaphore",
    "AsyncShard",
    "AsyncShards",
    "AsyncTerm",
    "Client",
    "ConfigError",
    "CurrentLease",
    "Election",
    "Error",
    "Group",
    "JobRun",
    "Jobs",
    "Leader",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockError",
    "Member",
    "Misuse",
    "MultiLease",
    "MultiLock",
    "NotAcquired",
    "NotCandidate",
    "NotHeld",
    "OutcomeUnknown",
    "Policy",
    "ReadWriteLock",
    "Semaphore",
    "Shard",
    "Shards",
    "StoreError",
    "StoreLike",
    "StoreUnavailable",
    "Term",
    "current",
    "exclusive",
    "once",
    "safe_name",
]

# Loaded at first use, so that blocking code does not pay for importing asyncio at each start.
_HOMES = {
    name: f"incumbent.{module}"
    for module, names in {
        "locks.clients": ("AsyncClient", "Client"),
        "cron.jobs": ("JobRun", "Jobs"),
        "decorators": ("exclusive", "once"),
        "election": ("Leader",),
        "locks.elections": ("AsyncElection", "AsyncTerm", "Election", "Term"),
        "locks.groups": ("AsyncGroup", "Group", "Member"),
        "locks.inside": ("CurrentLease", "current"),
        "locks.lock": ("AsyncLease", "AsyncLock", "Lease", "Lock"),
        "policy": ("Policy",),
        "runtime.link": ("StoreLike",),
        "locks.shards": ("AsyncShard", "AsyncShards", "Shard", "Shards"),
        "locks.several": (
            *("AsyncMultiLease", "AsyncMultiLock", "MultiLease", "MultiLock"),
            *("AsyncReadWriteLock", "AsyncSemaphore", "ReadWriteLock", "Semaphore"),
        ),
        "stores.names": ("safe_name",),
    }.items()
    for name in names
}


# Hidden from type checkers: to them, a module with a `__getattr__` has every name.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version

            return version("incumbent")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
