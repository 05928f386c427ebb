"""What the server keeps of a name, where, and how that and refusals are read. Pure.

The value of the lease's key:

    incumbent1 <claim> <token> <index in the history> <since, unix us> <ttl, ms> <holder> <meta>

`closed` in place of the claim: nobody holds the lease, and nobody may until the key expires.
`reserved` in place of the claim: the same, except for the holder named in place of the meta.
`shared` in place of the claim: several hold the lease, and the other words are those of the latest
holder. The number of permits (0: any) replaces the meta; the key expires with the last lease.
A value that begins with the number of another format is refused, and not read (see
incarnation.check_format). Any other value is a lease of a foreign client.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2s
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from incumbent.model import (
    UNLIMITED,
    Ask,
    Candidate,
    Field,
    Holding,
    Key,
    Past,
    Queued,
    Record,
    Refused,
)
from incumbent.stores.names import flat, unflat

FIELDS: Final = {
    # The last token, and its index in the history, which has 20 entries.
    "token": b"t",
    "history_index": b"n",
    # By index: "<token> <since, unix us> <slot or -> <holder>", and the time of the release:
    # "<unix s> <us of that second>".
    "holding": b"h",
    "ended": b"e",
    # By name, a field that `put` wrote: "<version> <value>". The last version. The number of
    # fields: while there is one, the record does not expire.
    "put": b"f:",
    "version": b"v",
    "field_count": b"k",
    # While there are waiters: "<end of the first waiter's turn, unix ms> <how often it was
    # overtaken> <watcher> <when the watcher asks, unix ms> <first waiter>". An end of 0: it was
    # silent in its turn, and a take that does not wait was granted since. The watcher
    # ("<inbox>/<id>" of a waiter, or "-") asks in case the first stays silent.
    "turn": b"q",
    # "<end, unix us> <argument 4 of a take>": until that end a take with this argument need not
    # look further: there is no waiter, no field, no claim given up in doubt, and the record lasts
    # long enough. "0": it has to look.
    "quiet_note": b"x",
    # By claim, a holder of a shared lease: "<token> <index> <since, unix us> <ttl, ms> <holder>
    # <meta>". A sorted set of "<claim> <token>" has the end of each.
    "sharer": b"p:",
    # The incarnation of the server that the record is known to belong to.
    "incarnation": b"i",
    # By claim: until when a claim that was given up in doubt is refused, unix us. And for all of
    # these claims: "<end of the last refusal> <when ended refusals were last removed>".
    "doubt": b"d:",
    "doubts": b"d",
}
"""The fields of the record of a lease, by their names in the scripts."""
CLOSED: Final = b"closed"
RESERVED: Final = b"reserved"
SHARED: Final = b"shared"
_OURS: Final = b"incumbent1"
_FOREIGN: Final = "<foreign>"


class Value(NamedTuple):
    """A value of incumbent. `since`: by the server's wall clock, in seconds; `ttl`: in seconds."""

    claim: bytes
    token: int
    since: float
    ttl: float
    holder: str
    meta: bytes

    @property
    def reserved_for(self) -> str:
        """The only holder that may take the lease; "" if it is not reserved."""
        return unquote(self.meta.decode("utf-8", "replace")) if self.claim == RESERVED else ""

    def holding(self, remaining: float | None, now: float | None = None) -> Holding:
        """The value as the contract's Holding."""
        held_for = None if now is None else max(0.0, now - self.since)
        if self.claim == CLOSED:
            return Holding(self.holder, self.token, remaining)
        if self.claim == RESERVED:
            return Holding(self.reserved_for, remaining=remaining)
        if self.claim == SHARED:
            permits = int(self.meta)
            return Holding(self.holder, self.token, remaining, self.ttl, permits=permits)
        claim = self.claim.decode("utf-8", "replace")
        return Holding(
            self.holder, self.token, remaining, self.ttl, held_for, self.meta, claim=claim
        )


def value_start(claim: str, token: int | None) -> str:
    """The beginning of a lease's value; with None as `token`, of a value with any token."""
    return f"incumbent1 {claim} " if token is None else f"incumbent1 {claim} {token} "


def read_value(raw: bytes) -> Value | None:
    """The value's parts, or None if a foreign client wrote it."""
    parts = raw.split(b" ", 7)
    if len(parts) != 8 or parts[0] != _OURS:
        return None
    _, claim, token, _, since, ttl, holder, meta = parts
    try:
        return Value(
            claim, int(token), int(since) / 1e6, int(ttl) / 1000, unquote(holder.decode()), meta
        )
    except ValueError:
        return None


def _holding(raw: bytes, left_ms: int, now: float | None) -> Holding:
    remaining = left_ms / 1000 if left_ms >= 0 else None
    value = read_value(raw)
    if value is None:
        return Holding(_FOREIGN, remaining=remaining, foreign=True)
    return value.holding(remaining, now)


_Reason: TypeAlias = Literal["held", "used", "reserved", "closed", "permits"]
_REASONS: Final[dict[bytes, _Reason]] = {
    b"held": "held",
    b"slot": "used",
    b"reserved": "reserved",
    b"permits": "permits",
}


def refused(kind: bytes, raw: bytes, left_ms: int, now_us: bytes, slot: str) -> Refused:
    """The Refused for a script's refusal. Its `seen` names the key to watch, and its digest."""
    if kind == b"paused":
        return Refused("paused", seen=f"pause {digest_of(raw)}")
    if kind == b"turn":
        # The value of a line ends with its first waiter: see take.lua.
        words = raw.split(b" ")
        first = unquote(words[4].decode("utf-8", "replace")) if len(words) == 5 else _FOREIGN
        return Refused("turn", (Holding(first, 0, left_ms / 1000),), left_ms / 1000, "lease -")
    holding = _holding(raw, left_ms, int(now_us) / 1e6)
    reason: _Reason = _REASONS.get(kind, "closed")
    watched = f"slot:{slot}" if kind == b"slot" else "lease"
    seen = f"{watched} {digest_of(raw)}"
    permits = (holding.permits or UNLIMITED) if reason == "permits" else UNLIMITED
    return Refused(reason, (holding,), holding.remaining, seen, permits=permits)


def digest_of(raw: bytes | None) -> str:
    """A short hash by which a value is compared without revealing the claim."""
    if raw is None:
        return "-"
    return blake2s(raw, digest_size=8).hexdigest()


# -- places in line --------------------------------------------------------------------------------


_LINE, _BOTH = "line", "both"
_WAITER: Final = 16
"""Letters of a claim that name its waiter."""


class LinePlace(NamedTuple):
    """The place of a waiter in line, as `Refused.seen` describes it.

    `follows`: the waiter wants the messages about the lease too; `at`: when the server stored the
    place (microseconds of its clock); `epoch`: the incarnation of that server.
    """

    id: str
    digest: str
    at: int
    epoch: str
    follows: bool


def waiter_id(claim: str) -> str:
    """The name of a waiter in line, in messages to it."""
    return claim[:_WAITER]


def in_line(
    refusal: Refused, claim: str, ask: Ask, now_us: bytes, place: int, epoch: str
) -> Queued:
    """The refusal of a waiter in line."""
    shown = refusal.reason, refusal.holders, refusal.retry_after, refusal.seen
    queued = Queued(*shown, max(0, place))
    if not refusal.seen.startswith("lease ") or refusal.reason == "closed":
        # A pause or a closing ends for all waiters at once, without a message to one of them.
        return queued
    what = _BOTH if ask.candidacy > 0 else _LINE
    digest = refusal.seen.removeprefix("lease ")
    return replace(queued, seen=f"{what} {digest} {waiter_id(claim)} {now_us.decode()} {epoch}")


def read_place(seen: str) -> LinePlace | None:
    """The place that `seen` describes; None if it describes anything else."""
    what, *words = seen.split(" ")
    if what not in (_LINE, _BOTH) or len(words) != 4 or not words[2].isdigit():
        return None
    return LinePlace(words[1], words[0], int(words[2]), words[3], what == _BOTH)


# -- the whole record ------------------------------------------------------------------------------


def fields_of(record: dict[bytes, bytes]) -> dict[str, Field]:
    """The fields that `put` wrote."""
    found = {}
    for name, raw in record.items():
        version, space, value = raw.partition(b" ")
        if name.startswith(b"f:") and space and version.isdigit():
            found[name[2:].decode()] = Field(value, int(version))
    return found


def history_of(record: dict[bytes, bytes]) -> list[tuple[Past, str]]:
    """Past holdings, oldest first, each with its slot ("" for none)."""
    found = []
    for name, begun in record.items():
        if name[:1] != b"h" or not name[1:].isdigit():
            continue
        try:
            found.append(_past(begun, record.get(b"e" + name[1:], b"0 0")))
        except ValueError:
            # Not written by incumbent. The history is for people: show them the rest.
            continue
    return sorted(found, key=lambda pair: pair[0].token)


def _past(begun: bytes, ended: bytes) -> tuple[Past, str]:
    token, since, slot, holder = begun.split(b" ", 3)
    seconds, micros = ended.split(b" ")
    end = int(seconds) * 1_000_000 + int(micros)
    # An end before the start belongs to the holding that had this index before.
    end_wall = end / 1e6 if end >= int(since) else None
    past = Past(unquote(holder.decode()), int(token), int(since) / 1e6, end_wall)
    return past, "" if slot == b"-" else unquote(slot.decode())


def slots_named(history: Iterable[tuple[Past, str]]) -> list[str]:
    """The slots that the history mentions: only these can have a tombstone."""
    return sorted({slot for _, slot in history if slot})


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """The answer to HGETALL as a dictionary."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def record_of(
    key: Key,
    raw: bytes | None,
    left_ms: int,
    record: dict[bytes, bytes],
    history: Iterable[tuple[Past, str]],
    slots: dict[str, float],
    standing: object,
    now: float,
    sharing: Sequence[Holding] = (),
) -> Record:
    """The Record of one key, from all that was read."""
    holdings: tuple[Any, ...] = ()
    closed_for, reserved_for = 0.0, ""
    # For a name that nobody holds, `seen` has the version of the last written field.
    seen = f"fields:{int(record[b'v'])} -" if b"v" in record else ""
    if raw is not None:
        seen = f"lease {digest_of(raw)}"
        holding = _holding(raw, left_ms, now)
        value = read_value(raw)
        if value is not None and value.claim in {CLOSED, RESERVED}:
            closed_for, reserved_for = holding.remaining or 0.0, value.reserved_for
        else:
            holdings = tuple(sharing) or (holding,)
    held = tuple(past for past, _ in history)
    fields, candidates = fields_of(record), candidates_of(standing, now)
    return Record(key, holdings, closed_for, fields, slots, held, candidates, seen, reserved_for)


def is_shared(raw: bytes | None) -> bool:
    """Whether the value is that of a shared lease."""
    return raw is not None and raw.startswith(b"incumbent1 shared ")


def sharing_of(
    raw: bytes, record: Mapping[bytes, bytes], ends: object, now: float
) -> list[Holding]:
    """The holders of a shared lease, oldest first; `ends`: the sorted set, with its scores."""
    permits, found = int(raw.rpartition(b" ")[2]), list[Holding]()
    for member, until in pairs(ends).items() if isinstance(ends, list) else ():
        claim, _, token = member.partition(b" ")
        left, part = float(until) / 1000 - now, record.get(FIELDS["sharer"] + claim, b"")
        if left <= 0 or not part.startswith(token + b" "):
            continue
        _, _, since, ttl, holder, meta = part.split(b" ", 5)
        held_for = max(0.0, now - int(since) / 1e6)
        who = (unquote(holder.decode()), int(token), left, int(ttl) / 1000, held_for, meta)
        found.append(Holding(*who, claim.decode(), permits=permits))
    return sorted(found, key=lambda holding: holding.token)


def candidates_of(standing: object, now: float) -> tuple[Candidate, ...]:
    """The candidates at `now`; none if the answer is an error instead of a list."""
    if not isinstance(standing, list):
        return ()
    found = [
        Candidate(unquote(holder.decode("utf-8", "replace")), float(until) / 1000 - now)
        for holder, until in pairs(standing).items()
    ]
    return tuple(sorted((it for it in found if it.remaining > 0), key=lambda it: it.holder))


# -- where a record lives --------------------------------------------------------------------------


_CACHED: Final = 1024
_GLOB: Final = re.compile(r"([*?\[\]\\^])")


def quoted(text: str) -> str:
    """`text` without spaces: its bytes in percent notation where that is needed."""
    return quote(text, safe="!#$&'()*+,/:;<=>?@[]^`{|}\"\\")


class RedisNames:
    """The keys and the channel of one lease, as texts."""

    __slots__ = ("candidates", "channel", "key", "lease", "line", "record", "sharers", "slots")

    def __init__(self, key: Key, main: str, tag: str) -> None:
        self.key = key
        self.lease = main
        self.record = f"incumbent:{{{tag}}}:r"
        self.channel = f"incumbent:{{{tag}}}:c"
        self.slots = f"incumbent:{{{tag}}}:s:"
        self.candidates = f"incumbent:{{{tag}}}:w"
        self.line = f"incumbent:{{{tag}}}:q"
        self.sharers = f"incumbent:{{{tag}}}:p"

    def slot(self, name: str) -> str:
        """The key of a slot's tombstone."""
        return self.slots + quoted(name)


class Naming:
    """From keys to names and back; `template` is the option `key=` (see options)."""

    def __init__(self, template: str | None) -> None:
        self._template = template
        self._cache: dict[Key, RedisNames] = {}

    def of(self, key: Key) -> RedisNames:
        """The names of `key`."""
        names = self._cache.get(key)
        if names is None:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            if self._template is None:
                main, tag = f"incumbent:{{{flat(key)}}}", flat(key)
            else:
                main = tag = self._fill(key.namespace, key.name)
            names = self._cache[key] = RedisNames(key, main, tag)
        return names

    def keys_of(self, key: Key, shared: bool = False) -> tuple[bytes, ...]:
        """The keys of lease and record, and if `shared` of the sharers; not kept in the cache."""
        if self._template is None:
            main = tagged = b"incumbent:{%b}" % flat(key).encode()
        else:
            main = self._fill(key.namespace, key.name).encode()
            tagged = b"incumbent:{%b}" % main
        return (main, tagged + b":r", tagged + b":p") if shared else (main, tagged + b":r")

    def _fill(self, namespace: str, name: str) -> str:
        template = self._template or ""
        return template.replace("{namespace}", namespace).replace("{name}", name)

    def patterns(self, namespace: str, prefix: str) -> list[str]:
        """SCAN patterns that cover every key of a lease whose name begins with `prefix`."""
        if self._template is None:
            return [f"incumbent:{{{_escaped(namespace)}/{_escaped(prefix)}*"]
        head, _, tail = self._template.partition("{name}")
        start = head.replace("{namespace}", namespace)
        end = tail.replace("{namespace}", namespace)
        main = f"{_escaped(start + prefix)}*{_escaped(end)}"
        return [main, f"incumbent:{{{main}}}:[bhrswq]*"]

    def key_of(self, found: str, namespace: str) -> Key | None:
        """The lease that a key on the server belongs to."""
        # Not by its sharers: those who crashed may be listed for longer than the record lasts.
        inner = re.fullmatch(r"incumbent:\{(.*)\}(?::[bhrwq]|:s:.*)?", found)
        if self._template is None or (inner is None and found.startswith("incumbent:{")):
            return unflat(inner[1]) if inner else None
        pattern = re.escape(self._fill(namespace, "\0")).replace(re.escape("\0"), "(.+)")
        name = re.fullmatch(pattern, inner[1] if inner else found)
        return Key(namespace, name[1]) if name else None


def _escaped(text: str) -> str:
    return _GLOB.sub(r"\\\1", text)


SLOTS: Final = 16_384
"""The slots of a cluster."""


def slot_of(name: str) -> int:
    """The slot of a key, computed from the text in its first braces if there is any."""
    _, opened, rest = name.partition("{")
    tag, closed, _ = rest.partition("}")
    # CRC-16/XMODEM, as the specification of clusters wants it; the standard library has it in C.
    return crc_hqx((tag if opened and closed and tag else name).encode(), 0) % SLOTS
