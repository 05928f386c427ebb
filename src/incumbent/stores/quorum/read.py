"""The record of a name, merged from the nodes' records. Pure, apart from the requests.

The record shows the values on which a majority agrees. If the nodes disagree on the lease, the
record shows no lease, and its `nodes` lists the lease on each node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from incumbent.clock import now as _now
from incumbent.durations import say_seconds
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Candidate, Field, Holding, Key, Past, Record
from incumbent.rules.notices import RESIGN
from incumbent.stores.quorum.ballots import Answer, Silent, majority_of
from incumbent.stores.quorum.changes import FORGOTTEN, NEVER, end_earlier_changes, slots_of
from incumbent.stores.quorum.dialect import FIELDS, digest_of_value, newest_state
from incumbent.stores.quorum.nodes import (
    Panel,
    Quorum,
    Reply,
    answered_by_most,
    no_majority,
    silent_of,
)
from incumbent.stores.redis.records import pairs, record_of
from incumbent.stores.redis.resp import RequestBatch, pack

T = TypeVar("T")

_HISTORY_KEPT: Final = 20
_CANDIDATES_KEPT: Final = 100
_SCANNED: Final = 500
_READ_AT_ONCE: Final = 100
_ANSWERS: Final = 8
_LAST: Final = 33
"""The offset of the last holdings within the value of the floor."""
_REREAD_AFTER: Final = 0.01
"""Seconds before a second read if the nodes disagree; doubled each time."""
_PAUSE_MOST: Final = 0.1


async def read(panel: Panel, key: Key, until: float) -> Record:
    """See Store.read. Raises StoreUnavailable if it is undecided whether the lease is held, or
    unknown whether a change of a field was made."""
    quorum = panel.quorum
    ((record, agree),) = await _read_all(panel, [key], until)
    pause = _REREAD_AFTER
    while record.undecided and await _may_reread(panel, pause, until):
        # Doubled: most takes end at once, and reading all the time makes a longer one no shorter.
        pause *= 2
        ((record, agree),) = await _read_all(panel, [key], until)
    if agree < len(quorum.names):
        try:
            # Return a record only when a majority has the newest fields.
            await end_earlier_changes(panel, key, until)
            ((record, _),) = await _read_all(panel, [key], until)
        except StoreError as error:
            # A majority that agrees is enough for a reader; with fewer nobody
            # knows the last change.
            if agree < quorum.need:
                raise StoreUnavailable(
                    f"nobody knows the last change of {key.name}: {error}",
                    retry_after=error.retry_after,
                ) from error
    # Asked last: the read after the completion may have decided it.
    if record.undecided:
        raise StoreUnavailable(
            f"no majority of {quorum.where} ({quorum.need} of {len(quorum.names)} needed) says the"
            f" same of {key.name}: {'; '.join(record.nodes)}"
        )
    return record


async def _may_reread(panel: Panel, pause: float, until: float) -> bool:
    """Pause before another read: meanwhile takes end, and more nodes get connected."""
    if pause >= _PAUSE_MOST or _now() + pause >= until:
        return False
    await panel.rest(pause)
    await panel.open(until)
    return True


async def is_unchanged(panel: Panel, key: Key, seen: str, until: float) -> bool:
    """Whether a majority still has the state that `seen` describes, and will publish its end."""
    need, (what, _, digest) = panel.quorum.need, seen.rpartition(" ")
    digest_of = newest_state if what == "fields" else digest_of_value
    request = panel.quorum.dialect.look(key, seen)
    pause = _REREAD_AFTER
    while True:
        replies = await panel.ask_all(request, until, answered_by_most)
        values = [reply[0] for reply in replies if not isinstance(reply, Silent)]
        usable = [raw for raw in values if raw is None or isinstance(raw, bytes)]
        same = sum(digest_of(raw) == (digest or "-") for raw in usable)
        # Once the silent nodes cannot turn it, there is nothing to wait for.
        known = same >= need or same + len(replies) - len(values) < need
        if known or not await _may_reread(panel, pause, until):
            # In doubt it has changed: to ask in vain costs a moment, to sleep on costs the turn.
            return same >= need
        pause *= 2


async def scan(panel: Panel, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
    """See Store.scan."""
    keys: set[Key] = set()
    for pattern in panel.quorum.dialect.naming.patterns(namespace, prefix):
        keys |= await _scan_keys(panel, pattern, namespace, prefix, until)
    found: list[tuple[Record, int]] = []
    ordered = sorted(keys)
    # In parts: while a node answers this, it answers no renewal.
    for start in range(0, len(ordered), _READ_AT_ONCE):
        found += await _read_all(panel, ordered[start : start + _READ_AT_ONCE], until)
    # Leave out names with nothing but a floor, or a vote without a majority.
    return tuple(record for record, _ in found if record != Record(record.key))


async def _scan_keys(
    panel: Panel, pattern: str, namespace: str, prefix: str, until: float
) -> set[Key]:
    """The keys on any node. Scans all nodes in step, until each scan is complete."""
    quorum = panel.quorum
    cursors: dict[int, bytes] = dict.fromkeys(range(len(quorum.names)), b"0")
    # A set: a SCAN may return a key twice, and each node returns its own copy.
    keys: set[Key] = set()
    failed: list[Answer | None] = [None] * len(quorum.names)
    while cursors:
        steps: list[RequestBatch | None] = [None] * len(quorum.names)
        for node, cursor in cursors.items():
            steps[node] = RequestBatch(pack("SCAN", cursor, "MATCH", pattern, "COUNT", _SCANNED), 1)
        replies = await panel.ask(steps, until)
        for node in list(cursors):
            reply = replies[node]
            if isinstance(reply, Silent) or not isinstance(reply[0], list):
                failed[node] = silent_of(reply, quorum.names[node])
                del cursors[node]
                continue
            cursors[node], names = reply[0]
            if cursors[node] == b"0":
                del cursors[node]
            for name in names:
                key = quorum.dialect.naming.key_of(name.decode("utf-8", "replace"), namespace)
                if key is not None and key[0] == namespace and key.name.startswith(prefix):
                    keys.add(key)
    # What counts is on a majority of nodes: no majority that was scanned to its end misses it.
    if failed.count(None) < quorum.need:
        raise no_majority(quorum, failed, perhaps=False)
    return keys


async def _read_all(panel: Panel, keys: Sequence[Key], until: float) -> list[tuple[Record, int]]:
    """The records, each with the number of nodes that have its newest fields."""
    quorum = panel.quorum
    one = [quorum.dialect.record(key) for key in keys]
    step = RequestBatch(b"".join(each.payload for each in one), sum(each.answers for each in one))
    replies = await panel.ask([step] * len(quorum.names), until)
    if not answered_by_most(replies):
        silent = [
            silent_of(reply, name)
            if isinstance(reply, Silent) or isinstance(reply[0], Exception)
            else None
            for reply, name in zip(replies, quorum.names, strict=True)
        ]
        raise no_majority(quorum, silent, perhaps=False)
    return [_overlay(quorum, key, at, replies) for at, key in enumerate(keys)]


class _NodeView:
    """One node's record of one key."""

    def __init__(self, quorum: Quorum, key: Key, replies: Sequence[Any]) -> None:
        time, raw, left, beside, standing, floor, past, self.marker = replies
        for reply in (time, raw, left, beside, floor):
            if isinstance(reply, Exception):
                raise ValueError(str(reply))
        now = int(time[0]) + int(time[1]) / 1e6
        self.raw: bytes | None = raw
        entries = pairs(beside)
        unsaid = FORGOTTEN if quorum.dialect.was_blank(self.marker) else NEVER
        states = entries.get(FIELDS["states"])
        self.state = int(states.split()[0]) if states else unsaid
        """The state of fields and slots: see changes."""
        self.past = pasts_of(floor, past if isinstance(past, bytes) else None)
        slots = slots_of(entries, quorum.clock.unix_us(_now()))
        self.record = record_of(key, raw, left, entries, (), slots, standing, now)

    @property
    def digest(self) -> str:
        return digest_of_value(self.raw)


def pasts_of(floor: bytes | None, past: bytes | None) -> list[Past]:
    """A node's past holdings, oldest first; the last few are in the floor's value: see node.lua."""
    found = {}
    for line in (b"%b\n%b" % (past or b"", (floor or b"")[_LAST:])).split(b"\n"):
        token, _, rest = line.partition(b" ")
        holder, _, ended = rest.partition(b" ")
        # Skip invalid lines: the history is informative, and the rest of it is still useful.
        if token.isdigit() and (ended.isdigit() or not ended):
            started, end = int(token) / 1e6, int(ended) / 1e6 if ended else None
            name = unquote(holder.decode("utf-8", "replace"))
            found[int(token)] = Past(name, int(token), started, end)
    return list(found.values())


def _overlay(quorum: Quorum, key: Key, at: int, replies: Sequence[Reply]) -> tuple[Record, int]:
    views: list[_NodeView] = []
    nodes: list[str] = []
    for name, reply in zip(quorum.names, replies, strict=True):
        if isinstance(reply, Silent):
            nodes.append(f"{name}: {reply.why}")
            continue
        try:
            view = _NodeView(quorum, key, reply[_ANSWERS * at : _ANSWERS * (at + 1)])
        except ValueError as error:
            nodes.append(f"{name}: {error}")
            continue
        views.append(view)
        nodes.append(f"{name}: {_state(view.record)}")
    if len(views) < quorum.need:
        raise StoreUnavailable(
            f"no majority of {quorum.where} ({quorum.need} of {len(quorum.names)} needed) can be"
            f" read: {'; '.join(nodes)}"
        )
    return _merged(key, views, quorum.need, tuple(nodes)), _agree(quorum, views)


def _agree(quorum: Quorum, views: Sequence[_NodeView]) -> int:
    """The number of nodes with the newest fields; all nodes if there is nothing to complete."""
    if all(view.marker is None for view in views):
        # A new quorum.
        return len(quorum.names)
    newest = max(view.state for view in views)
    agree = sum(view.state == newest != FORGOTTEN for view in views)
    if newest <= NEVER and len(views) == len(quorum.names):
        # No node has fields. Once that is written, a majority knows it even without blank nodes.
        return max(agree, quorum.need)
    return len(quorum.names) if agree == len(views) else agree


def _state(record: Record) -> str:
    if record.holdings:
        holding = record.holdings[0]
        left = "" if holding.remaining is None else f", ttl {say_seconds(holding.remaining)} left"
        return f"{holding.holder} ({holding.token}){left}"
    return f"closed for another {say_seconds(record.closed_for)}" if record.closed_for else "free"


def _merged(key: Key, views: Sequence[_NodeView], need: int, nodes: tuple[str, ...]) -> Record:
    most = majority_of(len(views))
    agreed = _agreed(views, need)
    shown = max(agreed, key=lambda view: _left(view.record)).record if agreed else Record(key)
    newest = max(views, key=lambda view: view.state)
    seen = f"fields {newest.state}" if newest.state > NEVER else ""
    past = _history(views, most)
    # Silent nodes may form a majority with the nodes that agree.
    votes = Counter(view.digest for view in views if view.raw)
    may_be_held = max(votes.values(), default=0) + len(nodes) - len(views) >= need
    return Record(
        key,
        _holdings(agreed, shown, need),
        shown.closed_for,
        _present(newest.record.fields, shown, past),
        newest.record.slots,
        past,
        _candidates(views, most),
        f"lease {agreed[0].digest}" if agreed and agreed[0].raw else seen,
        shown.reserved_for,
        nodes,
        undecided=not agreed and may_be_held,
    )


def _agreed(views: Sequence[_NodeView], need: int) -> list[_NodeView]:
    """The nodes with the same lease, if they are a majority."""
    groups: dict[str, list[_NodeView]] = {}
    for view in views:
        groups.setdefault(view.digest, []).append(view)
    return next((group for group in groups.values() if len(group) >= need), [])


def _left(record: Record) -> float:
    if record.holdings:
        return record.holdings[0].remaining or 0.0
    return record.closed_for


def _holdings(agreed: Sequence[_NodeView], shown: Record, need: int) -> tuple[Holding, ...]:
    """The holding, which lasts for as long as a majority has it."""
    if not shown.holdings:
        return ()
    ordered = sorted(agreed, key=lambda view: -_left(view.record))
    return (ordered[need - 1].record.holdings[0],)


def _present(fields: Mapping[str, Field], shown: Record, past: Sequence[Past]) -> dict[str, Field]:
    """The fields, without a request to resign that was meant for an earlier holder."""
    tokens = [it.token for it in shown.holdings] + [it.token for it in past]
    token = max(tokens, default=0)
    return {
        name: field for name, field in fields.items() if name != RESIGN or field.version > token
    }


def _known_to(most: int, views: Sequence[Sequence[T]], name: Callable[[T], Any]) -> list[list[T]]:
    """Groups of items with the same name, for names on at least `most` nodes, in their order."""
    found: dict[Any, list[T]] = {}
    for view in views:
        for each in view:
            found.setdefault(name(each), []).append(each)
    return [same for _, same in sorted(found.items()) if len(same) >= most]


def _history(views: Sequence[_NodeView], most: int) -> tuple[Past, ...]:
    """Holdings that a majority has seen, so without votes that won nothing."""
    found = [
        # A node that missed the release knows no end: one that knows it is right.
        max(same, key=lambda past: (past.ended is not None, past.ended or 0.0))
        for same in _known_to(most, [view.past for view in views], attrgetter("token"))
    ]
    return tuple(found[-_HISTORY_KEPT:])


def _candidates(views: Sequence[_NodeView], most: int) -> tuple[Candidate, ...]:
    """Candidates known to a majority, each with the longest time left on any node."""
    candidates = [view.record.candidates for view in views]
    remaining = attrgetter("remaining")
    known = _known_to(most, candidates, attrgetter("holder"))
    last = sorted((max(same, key=remaining) for same in known), key=remaining)[-_CANDIDATES_KEPT:]
    return tuple(sorted(last, key=attrgetter("holder")))
