"""Which jobs the instances that are up have between them: a job that none has runs no more. Pure.

Every instance names the set of its jobs in its sign of life; what is in a set stands once in a
field of KNOWN, as instances with the same file have the same set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2s
from typing import Any, Final

from incumbent.cron.control import Present
from incumbent.cron.ledger import PRUNED, RUN, read_job
from incumbent.model import Field, Record

__all__ = [
    "FORGET_AFTER",
    "GONE",
    "KNOWN",
    "SET",
    "JobSet",
    "gone_since",
    "had_by_nobody",
    "is_by_the_clock",
    "read_sets",
    "told_anew",
    "what_is_left",
]

KNOWN: Final = "@cron/jobs"
SET: Final = "set/"
GONE: Final = "gone"
"""In what is registered of a job: since when nobody has had it."""
FORGET_AFTER: Final = 30 * 86_400.0
"""Seconds after which nothing is left of a job that nobody has."""
_MARK: Final = 4


class JobSet:
    """Names of jobs, as few bytes each. A name may seem to be in it that is not; not conversely."""

    def __init__(self, names: Iterable[str]) -> None:
        self.value = b"".join(sorted(map(_mark, names)))
        self.digest = blake2s(self.value, digest_size=8).hexdigest()

    @property
    def field(self) -> str:
        """Where it stands."""
        return SET + self.digest


def _mark(name: str) -> bytes:
    return blake2s(name.encode(), digest_size=_MARK).digest()


def read_sets(record: Record | None) -> dict[str, frozenset[bytes]]:
    """All sets that are told, by their digests."""
    fields = {} if record is None else record.fields
    return {
        name.removeprefix(SET): frozenset(_marks(field.value))
        for name, field in fields.items()
        if name.startswith(SET)
    }


def _marks(value: bytes) -> Iterable[bytes]:
    return (value[at : at + _MARK] for at in range(0, len(value), _MARK))


def had_by_nobody(name: str, up: Iterable[Present], sets: Mapping[str, frozenset[bytes]]) -> bool:
    """Whether instances are up, all of them say what they have, and none has this job."""
    mark, anybody = _mark(name), False
    for peer in up:
        anybody = True
        if peer.knows not in sets or mark in sets[peer.knows]:
            return False
    return anybody


# -- what is registered of it ------------------------------------------------------------------


def is_by_the_clock(facts: Mapping[str, Any]) -> bool:
    """Whether instances have it, and not an outside scheduler (`run --slot`)."""
    return "timezone" in facts


def gone_since(fields: Mapping[str, Field]) -> float | None:
    """Since when nobody has had it, as the sweep found."""
    since = read_job(fields).get(GONE)
    return float(since) if isinstance(since, int | float) else None


def told_anew(fields: Mapping[str, Field], *, nobody: bool, now: float) -> bytes | None:
    """What is to be registered now that nobody has it, or somebody does; None: as it is."""
    facts = read_job(fields)
    if nobody == (GONE in facts):
        return None
    facts = {**facts, GONE: now} if nobody else {k: v for k, v in facts.items() if k != GONE}
    return json.dumps(facts, separators=(",", ":")).encode()


def what_is_left(fields: Mapping[str, Field]) -> list[str]:
    """The fields that the ledger has of a job: its runs, and what it forgot."""
    return [name for name in fields if name.startswith((RUN, PRUNED))]
