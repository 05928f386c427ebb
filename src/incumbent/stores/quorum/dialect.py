"""The requests to one node of a quorum, and the meaning of its replies. Pure.

A lease has the same record on each node as on a single server (`redis.records`), with the ballot as
its token. Beside it are the floor with the last few holdings, the holdings before them (one in each
line), and a hash with fields and slots (see node.lua). The node's marker names the format of all
these, the node's quorum, its birth, and the longest ttl that was ever asked for:
`incumbent1 <members> <born, unix us> <ms>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2s
from itertools import count
from pathlib import Path
from typing import Any, Final

import hiredis

from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import PLAIN, Ask, ByClaim, Key, Parting, Refused, Renewal
from incumbent.net.pool import Mismatch
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.findings import wait_after_restart
from incumbent.stores.quorum.ballots import Answer, No, Silent, Vote
from incumbent.stores.redis.records import Naming, RedisNames, quoted, refused
from incumbent.stores.redis.resp import RequestBatch, Script, milliseconds, pack
from incumbent.stores.redis.site import QUORUM_KEY, answered_error

FIELDS: Final = {
    "promised": b"p",
    "states": b"s",
    "field": b"f:",
    "slot": b"u:",
    "pause": b"f:pause",
    "resign": b"f:resign",
}
"""Names within the hash beside a lease, by their names in the scripts: see node.lua."""
SCRIPTS: Final = {
    name: Script(f"node:{name}", Path(__file__).parent, FIELDS)
    for name in ("take", "give", "revoke", "renew", "plant", "promise", "accept", "found", "look")
}
LOADS: Final = tuple(pack("SCRIPT", "LOAD", script.text) for script in SCRIPTS.values())

RECORD_FORMAT: Final = 1
"""The format of all keys on a node. The marker names it, so that other formats are refused."""
MARKER: Final = QUORUM_KEY
"""The key of the node's marker: one in each database of each server."""

_CACHED: Final = 4096
# Least seconds for which a node keeps its floor: until a ballot a minute ahead of its clock is
# more than a minute behind it. A node without a floor takes a minute behind its clock for it.
_KEEP_LEAST: Final = 180.0
# Seconds for which a node keeps its state after the last field was removed and the last slot
# ended. A node that was away for longer might bring old entries back.
_STATE_KEPT: Final = 35 * 86_400.0
_echoes = count()


class Keys:
    """The keys of one lease, and the prepared beginnings of the requests that have to be fast.

    The floor's key is also the channel on which changes are published.
    """

    __slots__ = ("candidates", "fields", "floor", "give", "lease", "of_take", "past", "take")

    def __init__(self, names: RedisNames) -> None:
        beside = names.record[:-1]
        self.lease, self.fields, self.candidates = names.lease, names.record, names.candidates
        self.floor, self.past = beside + "b", beside + "h"
        self.of_take: tuple[str, ...] = (self.lease, self.floor, MARKER, self.past, self.fields)
        self.take = SCRIPTS["take"].open_call(self.of_take, 8)
        self.give = SCRIPTS["give"].open_call((self.lease, self.floor), 2)


class QuorumDialect:
    """Packs requests and reads replies for all nodes. `members`: the fingerprint of their list."""

    def __init__(
        self, naming: Naming, members: str, restart_wait: float | None, where: str
    ) -> None:
        self.naming = naming
        self.members = members.encode()
        self.where = where
        self._wait = restart_wait
        self._members = f"incumbent{RECORD_FORMAT} {members} ".encode()
        self._longest = TTL_DEFAULT
        self.founded = False
        """Whether this process has tried to found the quorum: see changes.found."""
        self._keys: dict[Key, Keys] = {}
        self._tails: dict[int, tuple[Ask, bytes]] = {}

    def keys(self, key: Key) -> Keys:
        """The keys in Redis of the lease `key`."""
        keys = self._keys.get(key)
        if keys is None:
            if len(self._keys) >= _CACHED:
                self._keys.clear()
            keys = self._keys[key] = Keys(self.naming.of(key))
        return keys

    # -- take ---------------------------------------------------------------------------------

    def wait_of(self, ttl: float) -> float:
        """Seconds for which a new node does not vote."""
        return wait_after_restart(self._wait, ttl, self._longest)

    def is_ours(self, marker: Any) -> bool:
        """Whether this is the marker of a node of this quorum, in our format."""
        return type(marker) is bytes and marker.startswith(self._members)

    def was_blank(self, marker: Any) -> bool:
        """Whether a node with this marker may have forgotten entries: it was blank once."""
        return not self.is_ours(marker) or marker.split(b" ")[2] != b"0"

    def learn_marker(self, marker: Any) -> None:
        """Learn the longest ttl that a node's marker names."""
        if self.is_ours(marker):
            longest = int(marker.rpartition(b" ")[2]) / 1000
            if longest > self._longest:
                self._longest = longest
                self._tails.clear()

    def take(self, key: Key, claim: str, ask: Ask, ballot: int, *, raising: bool = False) -> bytes:
        """The request for a node's vote. `raising`: raise the claim's earlier vote to `ballot`."""
        if raising or ask.candidacy > 0:
            return self._take_more(key, claim, ask, ballot, raising=raising)
        kept = self._tails.get(id(ask))
        tail = kept[1] if kept is not None else self._tail(ask)
        secret = claim.encode()
        # Compute the length: a ballot has sixteen digits only until the year 2286.
        digits = b"%d" % ballot
        return b"%b$%d\r\nincumbent1 %b \r\n$%d\r\n%b\r\n%b" % (
            self.keys(key).take,
            12 + len(secret),
            secret,
            len(digits),
            digits,
            tail,
        )

    def _tail(self, ask: Ask) -> bytes:
        if len(self._tails) >= _CACHED:
            self._tails.clear()
        tail = pack(*self._ask_parts(ask)).partition(b"\r\n")[2]
        # Cached by identity: see redis.take.
        self._tails[id(ask)] = (ask, tail)
        return tail

    def _take_more(self, key: Key, claim: str, ask: Ask, ballot: int, *, raising: bool) -> bytes:
        keys = self.keys(key).of_take
        more: list[str | int] = ["+" if raising else "-"]
        if ask.candidacy > 0:
            keys += (self.keys(key).candidates,)
            more.append(milliseconds(ask.candidacy))
        parts = (*keys, _value_start(claim), ballot, *self._ask_parts(ask), *more)
        return SCRIPTS["take"].call(len(keys), *parts)

    def _ask_parts(self, ask: Ask) -> tuple[bytes | str | int, ...]:
        holder, ttl = quoted(ask.holder), milliseconds(ask.ttl)
        keep = milliseconds(max(ask.ttl, ask.keep_record, _KEEP_LEAST))
        value = f" {ttl} {holder} ".encode() + ask.meta
        founded = self._founded(ask.ttl)
        return (value, ttl, keep, founded, self._quarantine(), f" {holder}")

    def _founded(self, ttl: float) -> bytes:
        return b"%b0 %d" % (self._members, milliseconds(max(ttl, self._longest)))

    def _quarantine(self) -> int | str:
        if self._wait is None:
            return "-"
        return milliseconds(self._wait) if self._wait > 0 else 0

    def read_vote(self, reply: Any, claim: str, where: str) -> Answer:
        """The vote. Raises Mismatch for a reply to another request."""
        if type(reply) is bytes:
            return Vote(_ballot_of(reply, claim))
        if type(reply) is list and len(reply) == 2:
            return Vote(_ballot_of(reply[0], claim), reply[1] / 1000)
        if type(reply) is list and len(reply) == 5:
            name, raw, left, now, floor = reply
            kind = name.decode()
            seconds = left / 1000 if left >= 0 else -1.0
            if kind == "young":
                self.learn_marker(raw)
            return No(kind, raw, seconds, int(now), int(floor or 0), _refused_for(raw, kind))
        return Silent(*node_failure(reply, where))

    def refusal(self, no: No) -> Refused:
        """The outcome of the store contract for a majority's refusal."""
        mark = digest_of_value(no.raw)
        if no.kind == "paused":
            return Refused("paused", seen=f"pause {mark}")
        left = -1 if no.left < 0 else int(no.left * 1000)
        outcome = refused(no.kind.encode(), no.raw, left, b"%d" % no.now, "")
        return Refused(outcome.reason, outcome.holders, outcome.retry_after, f"lease {mark}")

    # -- the rest -----------------------------------------------------------------------------

    def give(
        self, key: Key, claim: str, token: int | None, now: int, parting: Parting = PLAIN
    ) -> bytes:
        """The request of a give. `now`: unix us by the nodes' clocks, for the history."""
        # Not before its beginning: a token may be ahead of the clocks.
        held, ended = _value_start(claim, token).encode(), b" %d" % max(now, token or 0)
        keys = self.keys(key)
        if parting.closed_for > 0:
            successor = (quoted(parting.reserve_for),) if parting.reserve_for else ()
            more = (ended, milliseconds(parting.closed_for), *successor)
            return SCRIPTS["give"].call(2, keys.lease, keys.floor, held, *more)
        return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (keys.give, len(held), held, len(ended), ended)

    def revoke(self, key: Key, claim: str, ballot: int, *, ended: int = 0) -> bytes:
        """The request that takes the claim's vote back, if its ballot is at most this one.

        `ended`: unix us by the nodes' clocks, if it was perhaps a holding, for the history.
        """
        at, more = self.keys(key), (ended,) if ended else ()
        return SCRIPTS["revoke"].call(2, at.lease, at.floor, _value_start(claim), ballot, *more)

    def renew(self, batch: Sequence[Renewal]) -> tuple[bytes, bytes]:
        """One request for many leases, and the echo with which its reply begins."""
        echo = f"{batch[0].claim}:{next(_echoes)}".encode()
        keys: list[bytes | str] = [MARKER]
        longest = milliseconds(max(self._longest, *(renewal.ttl for renewal in batch)))
        arguments: list[bytes | str | int] = [echo, self._members, self._quarantine(), longest]
        for renewal in batch:
            lease, record = self.naming.keys_of(renewal.key)
            keys += (lease, record[:-1] + b"b", record)
            meta = b"-" if renewal.meta is None else b"=" + renewal.meta
            start = _value_start(renewal.claim, renewal.token)
            arguments += [start, milliseconds(renewal.ttl), meta]
        return SCRIPTS["renew"].call(len(keys), *keys, *arguments), echo

    def plant(self, renewal: Renewal, value: bytes, floor: bytes) -> bytes:
        """The request to plant a lease where the renewal saw it missing, beside this floor."""
        at = self.keys(renewal.key)
        ttl = milliseconds(renewal.ttl)
        keys = (at.lease, at.floor, MARKER)
        quarantine = self._quarantine()
        return SCRIPTS["plant"].call(
            3, *keys, value, ttl, 86_400_000, self._members, quarantine, floor
        )

    def promise(self, key: Key, ballot: int, entry: str, held: ByClaim | None) -> bytes:
        """The request for a promise to change this entry: see node.lua."""
        at = self.keys(key)
        longest = milliseconds(self._longest)
        about = (ballot, self._members, longest, entry, _held_by(held))
        return SCRIPTS["promise"].call(3, at.fields, MARKER, at.lease, *about)

    def accept(
        self,
        key: Key,
        ballot: int,
        edit: tuple[str, bytes | None] | None,
        held: ByClaim | None,
        state: int | Sequence[bytes],
    ) -> bytes:
        """The request to accept a change of `state`, a ballot or all entries: see node.lua."""
        at = self.keys(key)
        entry, value = edit or ("", None)
        what = b"-" if value is None else b"=" + value
        before, entries = (str(state), ()) if isinstance(state, int) else ("=", tuple(state))
        keys = (at.fields, MARKER, at.lease, at.floor)
        head = (ballot, self._members, before, _held_by(held))
        changed = (entry, what if entry else b"", milliseconds(_STATE_KEPT))
        return SCRIPTS["accept"].call(4, *keys, *head, *changed, *entries)

    def stand_by(self, key: Key, ask: Ask, unix_us: int) -> RequestBatch:
        """The step that lists the asker as a candidate, although it asks no node for a vote."""
        line, till = self.keys(key).candidates, unix_us // 1000 + milliseconds(ask.candidacy)
        return RequestBatch(
            pack("ZADD", line, till, quoted(ask.holder))
            + pack("ZREMRANGEBYRANK", line, "0", "-101")
            + pack("PEXPIRE", line, milliseconds(max(86_400.0, ask.candidacy))),
            3,
        )

    def state(self, key: Key, entries: Sequence[str]) -> bytes:
        """The request for the newest change that a node accepted, and for these entries."""
        return pack("HMGET", self.keys(key).fields, FIELDS["states"], *entries)

    def entries(self, key: Key) -> RequestBatch:
        """The step that reads all entries beside the lease."""
        return RequestBatch(pack("HGETALL", self.keys(key).fields), 1)

    def value(self, key: Key) -> bytes:
        """The request for the value of the lease's own key."""
        return pack("GET", self.keys(key).lease)

    def look(self, key: Key, seen: str) -> bytes:
        """The request to look at the state that `seen` describes, before a wait for its end."""
        keys, (what, _, _) = self.keys(key), seen.rpartition(" ")
        if what == "pause":
            return pack("HGET", keys.fields, FIELDS["pause"])
        if what.startswith("slot:"):
            return pack("HGET", keys.fields, f"u:{what.removeprefix('slot:')}")
        if what == "fields":
            return pack("HGET", keys.fields, FIELDS["states"])
        return SCRIPTS["look"].call(1, keys.lease)

    def found(self, until_us: int) -> bytes:
        """The request to mark a blank node as one of a new quorum, until this time by its clock."""
        return SCRIPTS["found"].call(1, MARKER, self._founded(0.0), until_us)

    def record(self, key: Key) -> RequestBatch:
        """The step that reads all keys of one lease, the node's time and its marker."""
        at = self.keys(key)
        return RequestBatch(
            pack("TIME")
            + pack("GET", at.lease)
            + pack("PTTL", at.lease)
            + pack("HGETALL", at.fields)
            + pack("ZRANGE", at.candidates, "0", "-1", "WITHSCORES")
            + pack("GET", at.floor)
            + pack("GET", at.past)
            + pack("GET", MARKER),
            8,
        )


def _value_start(claim: str, token: int | None = None) -> str:
    return f"incumbent1 {claim} " if token is None else f"incumbent1 {claim} {token} "


def _ballot_of(reply: Any, claim: str) -> int:
    start, _, ballot = reply.rpartition(b" ")
    if start != b"incumbent1 " + claim.encode():
        raise Mismatch("the answer is another claim's")
    return int(ballot)


def node_failure(reply: Any, where: str) -> tuple[StoreError, bool]:
    """The exception for an error reply, and whether the node perhaps carried out the request."""
    if not isinstance(reply, hiredis.ReplyError):
        raise Mismatch(f"an answer of type {type(reply).__name__} was not expected")
    error = answered_error(str(reply), where)
    return error, isinstance(error, OutcomeUnknown)


def _held_by(held: ByClaim | None) -> str:
    return "" if held is None else _value_start(held.claim, held.token)


def _refused_for(raw: bytes, kind: str) -> bytes:
    """The cause of a refusal: the holder's claim, a closing and its ballot, or a foreign value."""
    if kind == "paused":
        return b"paused"
    parts = raw.split(b" ", 3)
    if len(parts) < 4 or parts[0] != b"incumbent1":
        return raw
    return parts[1] if kind == "held" else b" ".join(parts[1:3])


def newest_state(states: bytes | None) -> str:
    """The ballot of the last change in a node's `states`; a dash if there is none."""
    return states.split()[0].decode() if states else "-"


def digest_of_value(raw: bytes | None) -> str:
    """A short hash of a value, without the parts that differ from node to node."""
    if not raw:
        return "-"
    parts = raw.split(b" ", 7)
    if len(parts) == 8 and parts[0] == b"incumbent1":
        raw = b" ".join((*parts[:3], *parts[5:]))
    return blake2s(raw, digest_size=8).hexdigest()
