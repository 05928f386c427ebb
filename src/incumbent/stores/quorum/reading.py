"""What people read of a name: the nodes' records laid over each other. Pure but for the asking.

Shown is what a majority of the nodes that answered says; where two say different things, the record
says nothing, and its `nodes` say what each has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from incumbent.clock import now as _now
from incumbent.durations import say_seconds
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Candidate, Field, Holding, Key, Past, Record
from incumbent.stores.notices import RESIGN
from incumbent.stores.quorum.ballots import Answer, Silent, majority_of
from incumbent.stores.quorum.changes import FORGOTTEN, NEVER
from incumbent.stores.quorum.dialect import mark_of_value
from incumbent.stores.quorum.fields import settle
from incumbent.stores.quorum.group import Quorum, answered_by_most, no_majority, silent_of
from incumbent.stores.quorum.panel import NOT_ASKED, Heard, Panel
from incumbent.stores.quorum.slots import slots_of
from incumbent.stores.redis.records import pairs, record_of
from incumbent.stores.redis.resp import Step, pack

__all__ = ["is_unchanged", "pasts_of", "read", "scan"]

T = TypeVar("T")

_HISTORY_KEPT: Final = 20
_CANDIDATES_KEPT: Final = 100
_SCANNED: Final = 500
_READ_AT_ONCE: Final = 100
_ANSWERS: Final = 8
_LAST: Final = 33
"""Where the last holdings begin in the value of the floor."""
_LOOK_AGAIN: Final = 0.01
"""Seconds before the second look where the nodes are not of one mind, doubled each time."""
_LOOK_MOST: Final = 0.1


async def read(quorum: Quorum, panel: Panel, key: Key, until: float) -> Record:
    """See Store.read. Raises StoreUnavailable where somebody may hold it or not, or where nobody
    knows whether a change of a field was made."""
    ((record, agree),) = await _read_all(quorum, panel, [key], until)
    pause = _LOOK_AGAIN
    while record.undecided and await _may_look_again(panel, pause, until):
        pause *= 2
        ((record, agree),) = await _read_all(quorum, panel, [key], until)
    if agree < len(quorum.names):
        record = await _settled(quorum, panel, record, agree, until)
    if record.undecided:
        raise StoreUnavailable(
            f"no majority of {quorum.where} ({quorum.need} of {len(quorum.names)} needed) says the"
            f" same of {key.name}: {'; '.join(record.nodes)}"
        )
    return record


async def _settled(
    quorum: Quorum, panel: Panel, record: Record, agree: int, until: float
) -> Record:
    """The record, of which `agree` nodes have the newest fields, when a majority has them."""
    try:
        await settle(quorum, panel, record.key, until)
        ((record, _),) = await _read_all(quorum, panel, [record.key], until)
    except StoreError as error:
        if agree < quorum.need:
            raise StoreUnavailable(
                f"nobody knows the last change of {record.key.name}: {error}",
                retry_after=error.retry_after,
            ) from error
    return record


async def _may_look_again(panel: Panel, pause: float, until: float) -> bool:
    """In a moment those that vote just now agree, and more of them are connected."""
    if pause >= _LOOK_MOST or _now() + pause >= until:
        return False
    await panel.rest(pause)
    await panel.open(until)
    return True


async def scan(
    quorum: Quorum, panel: Panel, namespace: str, prefix: str, until: float
) -> tuple[Record, ...]:
    """See Store.scan."""
    keys: set[Key] = set()
    for pattern in quorum.dialect.naming.patterns(namespace, prefix):
        keys |= await _scan_keys(quorum, panel, pattern, namespace, prefix, until)
    found: list[tuple[Record, int]] = []
    ordered = sorted(keys)
    for start in range(0, len(ordered), _READ_AT_ONCE):
        found += await _read_all(quorum, panel, ordered[start : start + _READ_AT_ONCE], until)
    # A name of which only a floor is left, or a vote that won nothing, is none.
    return tuple(it for it, _ in found if it != Record(it.key))


async def _scan_keys(
    quorum: Quorum, panel: Panel, pattern: str, namespace: str, prefix: str, until: float
) -> set[Key]:
    """All nodes are scanned in step, until each has come round."""
    cursors: list[bytes | None] = [b"0"] * len(quorum.names)
    keys: set[Key] = set()
    failed: list[Answer | None] = [None] * len(quorum.names)
    while any(it is not None for it in cursors):
        steps = [
            None if at is None else Step(pack("SCAN", at, "MATCH", pattern, "COUNT", _SCANNED), 1)
            for at in cursors
        ]
        for node, it in enumerate(await panel.ask(steps, until)):
            if steps[node] is None:
                continue
            if isinstance(it, Silent) or not isinstance(it[0], list):
                failed[node], cursors[node] = silent_of(it, quorum.names[node]), None
                continue
            cursor, names = it[0]
            cursors[node] = None if cursor == b"0" else cursor
            keys |= set(_keys_of(quorum, names, namespace, prefix))
    answers = [it for it in failed if it is not None]
    if len(answers) > len(quorum.names) - quorum.need:
        raise no_majority(quorum, answers, perhaps=False)
    return keys


def _keys_of(quorum: Quorum, names: Sequence[bytes], namespace: str, prefix: str) -> Iterable[Key]:
    for name in names:
        key = quorum.dialect.naming.key_of(name.decode("utf-8", "replace"), namespace)
        if key is not None and key[0] == namespace and key.name.startswith(prefix):
            yield key


async def _read_all(
    quorum: Quorum, panel: Panel, keys: Sequence[Key], until: float
) -> list[tuple[Record, int]]:
    """The records, and how many nodes have the newest fields of each."""
    one = [quorum.dialect.record(key) for key in keys]
    step = Step(b"".join(it.payload for it in one), sum(it.answers for it in one))
    heard = await panel.ask([step] * len(quorum.names), until)
    if not answered_by_most(heard):
        mute: list[Answer] = [
            silent_of(it, name)
            if isinstance(it, Silent) or isinstance(it[0], Exception)
            else NOT_ASKED
            for it, name in zip(heard, quorum.names, strict=True)
        ]
        raise no_majority(quorum, mute, perhaps=False)
    return [_laid_over(quorum, key, at, heard) for at, key in enumerate(keys)]


class _View:
    """One node's record of one key."""

    def __init__(self, quorum: Quorum, key: Key, answers: Sequence[Any]) -> None:
        time, raw, left, beside, standing, floor, past, self.marker = answers
        broken = next((it for it in (time, raw, beside, floor) if isinstance(it, Exception)), None)
        if broken is not None:
            raise ValueError(str(broken))
        now = int(time[0]) + int(time[1]) / 1e6
        self.raw: bytes | None = raw
        entries = pairs(beside)
        unsaid = FORGOTTEN if quorum.dialect.was_blank(self.marker) else NEVER
        self.state = int(entries[b"s"].split()[0]) if b"s" in entries else unsaid
        """Of fields and slots: see changes."""
        self.past = pasts_of(floor, past if isinstance(past, bytes) else None)
        slots = slots_of(entries, quorum.clock.unix_us(_now()))
        self.record = record_of(key, raw, left, entries, slots, standing, now)

    @property
    def mark(self) -> str:
        return mark_of_value(self.raw)


def pasts_of(floor: bytes | None, past: bytes | None) -> list[Past]:
    """One node's holdings, oldest first; the last few are kept with the floor: see take.lua."""
    found = {}
    for line in (b"%b\n%b" % (past or b"", (floor or b"")[_LAST:])).split(b"\n"):
        token, _, rest = line.partition(b" ")
        holder, _, ended = rest.partition(b" ")
        # What is not ours is left out: this is for people, who are better off with the rest.
        if token.isdigit() and (ended.isdigit() or not ended):
            started, end = int(token) / 1e6, int(ended) / 1e6 if ended else None
            name = unquote(holder.decode("utf-8", "replace"))
            found[int(token)] = Past(name, int(token), started, end)
    return list(found.values())


def _laid_over(quorum: Quorum, key: Key, at: int, heard: Sequence[Heard]) -> tuple[Record, int]:
    views: list[_View] = []
    nodes: list[str] = []
    for name, it in zip(quorum.names, heard, strict=True):
        if isinstance(it, Silent):
            nodes.append(f"{name}: {it.why}")
            continue
        try:
            view = _View(quorum, key, it[_ANSWERS * at : _ANSWERS * (at + 1)])
        except ValueError as error:
            nodes.append(f"{name}: {error}")
            continue
        views.append(view)
        nodes.append(f"{name}: {_said(view.record)}")
    if len(views) < quorum.need:
        raise StoreUnavailable(
            f"no majority of {quorum.where} ({quorum.need} of {len(quorum.names)} needed) can be"
            f" read: {'; '.join(nodes)}"
        )
    return _merged(key, views, quorum.need, tuple(nodes)), _agree(quorum, views)


def _agree(quorum: Quorum, views: Sequence[_View]) -> int:
    """How many nodes have the newest fields; all of them where there is nothing to settle."""
    if all(it.marker is None for it in views):
        # A new quorum.
        return len(quorum.names)
    newest = max(it.state for it in views)
    agree = sum(it.state == newest != FORGOTTEN for it in views)
    if newest <= NEVER and len(views) == len(quorum.names):
        # Nobody has any. Once that is settled, a majority knows it without those that were blank.
        return max(agree, quorum.need)
    return len(quorum.names) if agree == len(views) else agree


def _said(record: Record) -> str:
    if record.holdings:
        it = record.holdings[0]
        left = "" if it.remaining is None else f", ttl {say_seconds(it.remaining)} left"
        return f"{it.holder} ({it.token}){left}"
    return f"closed for another {say_seconds(record.closed_for)}" if record.closed_for else "free"


def _merged(key: Key, views: Sequence[_View], need: int, nodes: tuple[str, ...]) -> Record:
    records = [it.record for it in views]
    agreed = _agreed(views, need)
    shown = max(agreed, key=lambda it: -_left(it.record)).record if agreed else Record(key)
    newest = max(views, key=lambda it: it.state).record
    seen = f"lease {agreed[0].mark}" if agreed and agreed[0].raw else ""
    return Record(
        key,
        _holdings(agreed, shown, need),
        shown.closed_for,
        _present(newest.fields, shown),
        newest.slots,
        _history([it.past for it in views], majority_of(len(views))),
        _candidates(records, majority_of(len(records))),
        seen,
        shown.reserved_for,
        nodes,
        undecided=not agreed and _may_be_held(views, need, len(nodes) - len(views)),
    )


def _may_be_held(views: Sequence[_View], need: int, silent: int) -> bool:
    """Whether the nodes that say nothing may make a majority with those that say the same."""
    counts = Counter(it.mark for it in views if it.raw)
    return max(counts.values(), default=0) + silent >= need


def _agreed(views: Sequence[_View], need: int) -> list[_View]:
    """The nodes that say the same, if they are a majority."""
    groups: dict[str, list[_View]] = {}
    for it in views:
        groups.setdefault(it.mark, []).append(it)
    return next((group for group in groups.values() if len(group) >= need), [])


def _left(record: Record) -> float:
    if record.holdings:
        return record.holdings[0].remaining or 0.0
    return record.closed_for


def _holdings(agreed: Sequence[_View], shown: Record, need: int) -> tuple[Holding, ...]:
    """Held for as long as a majority says so."""
    if not shown.holdings:
        return ()
    ordered = sorted(
        (it.record.holdings[0] for it in agreed), key=lambda it: -(it.remaining or 0.0)
    )
    return (ordered[need - 1],)


def _present(fields: Mapping[str, Field], shown: Record) -> dict[str, Field]:
    """Without a request to resign that was meant for an earlier holder."""
    token = max((it.token for it in shown.holdings), default=0)
    return {name: it for name, it in fields.items() if name != RESIGN or it.version > token}


def _history(views: Sequence[Sequence[Past]], need: int) -> tuple[Past, ...]:
    """Holdings that a majority has seen: no vote that won nothing."""
    ends: dict[int, list[Past]] = {}
    for pasts in views:
        for past in pasts:
            ends.setdefault(past.token, []).append(past)
    found = [
        max(same, key=lambda it: (it.ended is not None, it.ended or 0.0))
        for _, same in sorted(ends.items())
        if len(same) >= need
    ]
    return tuple(found[-_HISTORY_KEPT:])


def _candidates(records: Sequence[Record], need: int) -> tuple[Candidate, ...]:
    counts = Counter(it.holder for record in records for it in record.candidates)
    best: dict[str, Candidate] = {}
    for record in records:
        for it in record.candidates:
            if counts[it.holder] >= need and it.remaining > best.get(it.holder, _NOBODY).remaining:
                best[it.holder] = it
    ordered = sorted(best.values(), key=lambda it: it.remaining)[-_CANDIDATES_KEPT:]
    return tuple(sorted(ordered, key=lambda it: it.holder))


_NOBODY: Final = Candidate("", 0.0)


async def is_unchanged(quorum: Quorum, panel: Panel, key: Key, seen: str, until: float) -> bool:
    """Whether what `Refused.seen` speaks of is still so on a majority; then its end is told."""
    what, _, mark = seen.rpartition(" ")
    dialect = quorum.dialect
    request = dialect.look(key)
    if what == "pause":
        request = pack("HGET", dialect.places(key).fields, "f:pause")
    elif what.startswith("slot:"):
        request = pack("HGET", dialect.places(key).fields, f"u:{what.removeprefix('slot:')}")
    pause = _LOOK_AGAIN
    while True:
        heard = await panel.ask([Step(request, 1)] * len(quorum.names), until, answered_by_most)
        same = _count(heard, lambda it: mark_of_value(it) == (mark or "-"))
        silent = sum(isinstance(it, Silent) for it in heard)
        known = same >= quorum.need or same + silent < quorum.need
        if known or not await _may_look_again(panel, pause, until):
            return same >= quorum.need
        pause *= 2


def _count(heard: Sequence[Heard], holds: Callable[[bytes | None], bool]) -> int:
    values = [it[0] for it in heard if not isinstance(it, Silent)]
    return sum(holds(it) for it in values if it is None or isinstance(it, bytes))
