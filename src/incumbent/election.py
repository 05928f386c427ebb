"""Decisions of elections: a record's leader, a leader's metadata, the pause between two terms.

Pure: no clock, no randomness, no I/O. A leader that is read is for display and for followers; only
the elected candidate may act on it, and only while its term is proved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

from incumbent.durations import backoff_delay
from incumbent.errors import ConfigError
from incumbent.model import META_MAX, Holding, Record, Refused

PRIORITY: Final = "incumbent.priority"
"""The key of a leader's rank, stored among its metadata."""
_PAUSE_BASE: Final = 0.1
_PAUSE_CAP: Final = 5.0
"""Seconds: bounds of the pause between two terms of one candidate."""
_VACANT_BASE: Final = 0.02
_VACANT_CAP: Final = 1.0
"""Seconds that an observer waits for a hint while nobody leads: doubled from base up to cap."""


@dataclass(frozen=True, slots=True)
class Leader:
    """A leader, as the store reported it at some instant; its term may be over when you read this.

    `term` is the fencing token of the leadership. `metadata` is the mapping of texts that the
    leader proclaimed, empty if it proclaimed something else. `raw` has the bytes themselves.
    """

    holder: str
    """The leader's name: `holder=`, or the host and process."""
    term: int
    """The fencing token: larger than that of every earlier term of this name."""
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    """What the leader proclaimed, if it is a mapping of texts; else empty."""
    raw: bytes = field(default=b"", repr=False, hash=False)
    """The metadata as bytes."""

    @property
    def priority(self) -> int | None:
        """The leader's priority; None if it has none, and so never steps down for another."""
        rank = rank_of(self.raw)
        return None if rank is None else rank.priority


class Priority(NamedTuple):
    """A leader's rank: `step_down_after` seconds into a term it yields to a higher `priority`."""

    priority: int
    step_down_after: float


def with_rank(metadata: bytes, rank: Priority | None) -> bytes:
    """The metadata with the candidate's rank added. Raises ConfigError."""
    if rank is None:
        return metadata
    fields = _mapping(metadata)
    if not fields and metadata not in (b"", b"{}"):
        raise ConfigError("priority: metadata is a mapping then, not bytes", name="metadata")
    said = {PRIORITY: f"{rank.priority} {rank.step_down_after:.3f}"}
    return _fitting(json.dumps({**fields, **said}, ensure_ascii=False, separators=(",", ":")))


def rank_of(raw: bytes) -> Priority | None:
    """The rank in a leader's metadata; None if there is none."""
    try:
        priority, after = str(_mapping(raw)[PRIORITY]).split(" ")
        return Priority(int(priority), float(after))
    except (KeyError, ValueError):
        return None


def encode_metadata(metadata: Mapping[str, str] | bytes | None) -> bytes:
    """The metadata as bytes to store beside the lease, at most 1 KiB. Raises ConfigError.

    A mapping of texts becomes JSON; bytes stay as they are.
    """
    if metadata is None:
        return b""
    if not isinstance(metadata, (bytes, Mapping)):
        raise ConfigError(f"metadata: a mapping of texts, not {metadata!r:.60}", name="metadata")
    return _fitting(metadata if isinstance(metadata, bytes) else _as_json(metadata))


def _fitting(metadata: bytes | str) -> bytes:
    try:
        encoded = metadata if isinstance(metadata, bytes) else metadata.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"metadata: {error}", name="metadata") from error
    if len(encoded) > META_MAX:
        raise ConfigError(f"metadata: {len(encoded)} bytes, at most {META_MAX}", name="metadata")
    return encoded


def _as_json(metadata: Mapping[str, str]) -> str:
    fields = dict(cast("Mapping[object, object]", metadata))
    if not all(isinstance(text, str) for field in fields.items() for text in field):
        raise ConfigError(
            f"metadata: keys and values are texts, not {fields!r:.60}", name="metadata"
        )
    if PRIORITY in fields:
        raise ConfigError(f"metadata: {PRIORITY!r} is said by priority=", name="metadata")
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def read_metadata(raw: bytes) -> dict[str, str]:
    """The mapping in `raw`, without the rank; empty if the bytes are no JSON mapping of texts."""
    found = _mapping(raw)
    found.pop(PRIORITY, None)
    return found if all(isinstance(value, str) for value in found.values()) else {}


def _mapping(raw: bytes) -> dict[str, str]:
    try:
        found = json.loads(raw) if raw else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def leader_of(record: Record) -> Leader | None:
    """The leader in a record; None if there is none."""
    return _first(record.holdings)


def leaders_of(record: Record) -> tuple[Leader, ...]:
    """All leaders in a record, in the order of their terms."""
    return tuple(sorted(map(_leader, record.holdings), key=lambda leader: leader.term))


def leader_by_refusal(refused: Refused) -> Leader | None:
    """The leader that a refusal names; its metadata may be missing: stores may omit them there."""
    return _first(refused.holders) if refused.reason == "held" else None


def _first(holdings: tuple[Holding, ...]) -> Leader | None:
    return _leader(holdings[0]) if holdings else None


def _leader(holding: Holding) -> Leader:
    return Leader(holding.holder, holding.token, read_metadata(holding.meta), holding.meta)


def watch_for(record: Record, vacant: int, jitter: float, ttl: float) -> float:
    """Seconds to wait for a hint from the store before reading its record again.

    While there is a leader: its remaining ttl, because only its expiry may come without a hint.
    While there is none: short, then growing intervals, because stores need not hint at an election
    (`vacant`: reads in a row that found no leader).
    """
    if record.holdings:
        left = record.holdings[0].remaining
        # A little later, and not all at once: at that instant every observer reads.
        return ttl if left is None else min(left, ttl) + 0.002 * jitter
    cap = min(_VACANT_CAP, ttl)
    return min(cap, _VACANT_BASE * 2.0 ** min(vacant, 30)) * (0.5 + 0.5 * jitter)


@dataclass(slots=True)
class CandidatePauses:
    """The pauses of a candidate between its terms. `ttl` and `head_start` are seconds.

    Full-jitter exponential backoff, so that a broken leader does not come back at once for ever; a
    term longer than the ttl resets it. A leader that was asked to go also gives the others a head
    start, or it might succeed itself.
    """

    ttl: float
    head_start: float
    short: int = 0

    def pause(self, lasted: float, jitter: float, *, asked: bool = False) -> float:
        """Seconds until the next campaign, after a term of `lasted` seconds."""
        self.short = 0 if lasted > self.ttl else self.short + 1
        delay = backoff_delay(self.short, jitter, base=_PAUSE_BASE, cap=_PAUSE_CAP)
        return max(delay, self.head_start) if asked else delay


class Absence:
    """The time in which a candidate knew of no leader. The caller passes all instants."""

    __slots__ = ("_before", "_since")

    def __init__(self) -> None:
        self._since: float | None = None
        self._before = 0.0

    def seen(self, now: float, *, leader: bool) -> None:
        """Note whether a leader is known from `now` on."""
        self._before, self._since = self.seconds(now), None if leader else now

    def seconds(self, now: float) -> float:
        """The total seconds without a known leader, until `now`."""
        return self._before if self._since is None else self._before + now - self._since
