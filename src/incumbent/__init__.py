"""Leases for fleets: of many instances exactly one does the dangerous thing, or none does."""

from typing import TYPE_CHECKING, Any

from incumbent.errors import (
    AcquireTimeout,
    AlreadyReleased,
    ConfigError,
    LeaseLost,
    LockError,
    Misuse,
    NotAcquired,
    NotHeld,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from incumbent.aio import AsyncClient, AsyncLease, AsyncLock
    from incumbent.decorators import exclusive, once
    from incumbent.sync import Client, Lease, Lock

__all__ = [
    "AcquireTimeout",
    "AlreadyReleased",
    "AsyncClient",
    "AsyncLease",
    "AsyncLock",
    "Client",
    "ConfigError",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockError",
    "Misuse",
    "NotAcquired",
    "NotHeld",
    "OutcomeUnknown",
    "StoreError",
    "StoreUnavailable",
    "exclusive",
    "once",
]

# Loaded at first use: who only blocks need not pay for asyncio at every start of a command.
_HOMES = {
    "AsyncClient": "incumbent.aio",
    "AsyncLease": "incumbent.aio",
    "AsyncLock": "incumbent.aio",
    "Client": "incumbent.sync",
    "Lease": "incumbent.sync",
    "Lock": "incumbent.sync",
    "exclusive": "incumbent.decorators",
    "once": "incumbent.decorators",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
