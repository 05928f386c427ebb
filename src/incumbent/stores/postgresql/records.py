"""What the server's functions say of records, read back. Pure."""

from __future__ import annotations

from typing import Any, Final, Literal

from incumbent.model import Candidate, Field, Holding, Past, Record, Refused
from incumbent.stores.names import unflat

__all__ = ["record_of", "refused"]

_REASONS: Final[dict[str, Literal["held", "paused", "closed", "reserved"]]] = {
    "held": "held",
    "paused": "paused",
    "closed": "closed",
    "reserved": "reserved",
    "slot": "closed",
}


def refused(said: dict[str, Any]) -> Refused:
    """The refusal that `take` answered."""
    why, seen = said["reason"], said["seen"]
    if why == "paused":
        return Refused("paused", seen=seen)
    if why == "given_up":
        return Refused("closed", seen=seen)
    left = float(said["holding"]["left"])
    if why == "reserved":
        holding = Holding(said["reserved_for"], remaining=left)
    elif why == "closed":
        holding = Holding(said["holding"]["holder"], said["holding"]["token"], left)
    else:
        holding = _holding(said["holding"])
    return Refused(_REASONS[why], (holding,), left, seen)


def _holding(said: dict[str, Any]) -> Holding:
    return Holding(
        said["holder"],
        said["token"],
        float(said["left"]),
        said["ttl"] / 1e6,
        max(0.0, float(said["for"])),
        bytes.fromhex(said["meta"]),
        said["claim"],
    )


def record_of(said: dict[str, Any]) -> Record:
    """One record that `read` or `scan` answered."""
    left, held = float(said["holding"]["left"]), said["holding"]["claim"] != ""
    closed = left > 0 and not held
    return Record(
        unflat(said["key"]),
        (_holding(said["holding"]),) if held and left > 0 else (),
        left if closed else 0.0,
        {
            name: Field(bytes.fromhex(value), version)
            for name, value, version in _all(said, "fields")
        },
        {name: float(kept) for name, kept in _all(said, "slots")},
        tuple(Past(*past) for past in _all(said, "history")),
        tuple(Candidate(holder, float(for_)) for holder, for_ in _all(said, "candidates")),
        said["seen"],
        said["reserved_for"] if closed else "",
    )


def _all(said: dict[str, Any], what: str) -> list[Any]:
    return said[what] or []
