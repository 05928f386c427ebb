"""The environment of this example: the names that Redis leader templates use, and ours.

    LOCK_KEY             the name; with REDIS_HOST also the key in Redis, as it was before
    LOCK_TTL_MS          INCUMBENT_TTL
    LOCK_RENEW_EVERY_MS  how often to renew (form 1; `incumbent lead` renews every ttl/5)
    INSTANCE_ID          INCUMBENT_HOLDER
    REDIS_HOST           INCUMBENT_STORE, with REDIS_PORT (6379)
    STANDBY_SLEEP_MS     accepted and not used: standbys are woken, they do not sleep

Where both say something, ours counts, and a line says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Settings", "settings_from"]

_PAIRS = {
    "LOCK_TTL_MS": "INCUMBENT_TTL",
    "INSTANCE_ID": "INCUMBENT_HOLDER",
    "REDIS_HOST": "INCUMBENT_STORE",
}


@dataclass(frozen=True)
class Settings:
    """`None`: not set here, so that incumbent's own default stands. Durations are texts with units.

    `remarks` are lines for people, about settings that do nothing.
    """

    name: str
    store: str | None
    namespace: str
    ttl: str
    renew_every: str | None
    holder: str | None
    remarks: tuple[str, ...]


def settings_from(environ: Mapping[str, str]) -> Settings:
    """Raises KeyError without LOCK_KEY; what the values are worth, incumbent itself checks."""
    return Settings(
        name=environ["LOCK_KEY"],
        store=environ.get("INCUMBENT_STORE") or _redis(environ),
        namespace=environ.get("INCUMBENT_NAMESPACE") or "default",
        ttl=environ.get("INCUMBENT_TTL") or _milliseconds(environ, "LOCK_TTL_MS") or "15s",
        renew_every=_milliseconds(environ, "LOCK_RENEW_EVERY_MS"),
        holder=environ.get("INCUMBENT_HOLDER") or environ.get("INSTANCE_ID") or None,
        remarks=tuple(_remarks(environ)),
    )


def _redis(environ: Mapping[str, str]) -> str | None:
    host = environ.get("REDIS_HOST")
    if not host:
        return None
    # The same key as before: while a fleet is being changed over, old and new exclude each other.
    return f"redis://{host}:{environ.get('REDIS_PORT') or 6379}?key={{name}}"


def _milliseconds(environ: Mapping[str, str], variable: str) -> str | None:
    return f"{environ[variable]}ms" if environ.get(variable) else None


def _remarks(environ: Mapping[str, str]) -> list[str]:
    remarks = [
        f"{theirs} is not used: {ours} is set"
        for theirs, ours in _PAIRS.items()
        if environ.get(theirs) and environ.get(ours)
    ]
    if environ.get("STANDBY_SLEEP_MS"):
        remarks.append("STANDBY_SLEEP_MS is not used: standbys are woken by the store")
    return remarks
