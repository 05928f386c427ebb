"""What a guard needs to know of a lease."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from incumbent.errors import ConfigError, LeaseLost


class Fenced(Protocol):
    """A lease of any kind (`Lease`, `Term`, `CurrentLease`, `JobRun`), or a `Token`."""

    @property
    def name(self) -> str:
        """The name that is leased."""
        ...

    @property
    def fencing_token(self) -> int:
        """A number that is larger than that of every earlier holder of this name."""
        ...

    def check(self) -> None:
        """Raise LeaseLost if the lease is not proved."""
        ...


class Token(NamedTuple):
    """A fencing token that came from elsewhere: from a request, or the environment of a command.

    Nothing here proves the lease, so `check` passes: only the guard's comparison protects.
    """

    name: str
    """The name that is leased, or the resource."""
    fencing_token: int

    def check(self) -> None:
        """Nothing to ask: the lease is somebody else's."""


def resource_of(lease: Fenced, resource: str | None) -> str:
    """What is guarded; raises ConfigError for an empty or too long name (255 bytes)."""
    name = lease.name if resource is None else resource
    if not name or len(name.encode()) > 255 or not name.isprintable():
        raise ConfigError(f"a resource is 1 to 255 printable bytes, not {name!r}", name="resource")
    return name


def refused(resource: str, token: int, seen: int | None = None) -> LeaseLost:
    """The error of a guard that has seen a larger token than `token`."""
    later = "a larger one" if seen is None else f"token {seen}"
    return LeaseLost(
        f"token {token} may not write to {resource!r} any more: {later} was here, so a later"
        " holder was granted the lease; nothing was written",
        name=resource,
        reason="taken",
    )
