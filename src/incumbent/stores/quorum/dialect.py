"""What is said to one node of a quorum, and what its answers mean. Pure: operation -> request,
reply -> vote.

A lease looks on each node as it does on a single server (`redis.records`), with the ballot as its
token. Beside it are the floor with the last holding (see take.lua), the holdings before that, a
line each, and a hash with fields and slots (see promise.lua). The node's marker says in which
format all of it is, which quorum it belongs to, since when, and the longest ttl that anybody asked
for: `incumbent2 <members> <born, unix us> <ms>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2s
from itertools import count
from typing import Any, Final, NamedTuple

import hiredis

from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import (
    Ask,
    ByClaim,
    Key,
    Refused,
    Renewal,
)
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.quorum.ballots import Answer, No, Silent, Vote
from incumbent.stores.quorum.scripts import SCRIPTS
from incumbent.stores.redis.errors import Mismatch, answered_error
from incumbent.stores.redis.names import Naming, quoted
from incumbent.stores.redis.records import refused
from incumbent.stores.redis.resp import Step, milliseconds, pack
from incumbent.stores.restart import wait_after_restart

__all__ = [
    "MARKER",
    "RECORD_FORMAT",
    "QuorumDialect",
    "mark_of_value",
    "node_failure",
    "stage_of_value",
]

RECORD_FORMAT: Final = 2
"""Of all that is kept on a node. The marker names it, so that instances of another are refused."""
MARKER: Final = "incumbent:{quorum}:m"
"""The node's own key: one for each database of each server."""

_CACHED: Final = 256
_KEEP_LEAST: Final = 180.0
"""Seconds for which a node remembers its floor at least: until a ballot a minute ahead of
its clock is more than a minute behind it, which is the floor where none is kept."""
_STATE_KEPT: Final = 35 * 86_400.0
"""Seconds for which a node knows that the last field was removed, and the last slot over. One that
was away for longer might bring it back."""

_take, _give, _revoke = SCRIPTS["take"], SCRIPTS["give"], SCRIPTS["revoke"]
_renew = SCRIPTS["renew"]
_plant, _found = SCRIPTS["plant"], SCRIPTS["found"]
_promise, _accept = SCRIPTS["promise"], SCRIPTS["accept"]
_look = SCRIPTS["look"]
_echoes = count()


class Places(NamedTuple):
    """The keys of one lease. The floor's is also the name of the channel."""

    main: str
    floor: str
    past: str
    fields: str
    candidates: str


class QuorumDialect:
    """Packs and reads for every node of one quorum; `members` is the fingerprint of its list."""

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
        """Whether this process has tried to found the quorum: see founding."""
        self._places: dict[Key, Places] = {}
        self._heads: dict[Key, bytes] = {}
        self._gives: dict[Key, bytes] = {}
        self._tails: dict[int, tuple[Ask, bytes]] = {}

    def places(self, key: Key) -> Places:
        """Where everything of `key` is."""
        return self._places.get(key) or self._place(key)

    def _place(self, key: Key) -> Places:
        if len(self._places) >= _CACHED * 16:
            self._places.clear()
        names = self.naming.of(key)
        beside = names.companion[:-1]
        places = Places(names.main, beside + "b", beside + "h", names.companion, names.candidates)
        self._places[key] = places
        return places

    # -- take ---------------------------------------------------------------------------------

    def wait_of(self, ttl: float) -> float:
        """Seconds for which a node that is new does not vote."""
        return wait_after_restart(self._wait, ttl, self._longest)

    def is_ours(self, marker: Any) -> bool:
        """Whether this is the marker of a node of this quorum, in our format."""
        return type(marker) is bytes and marker.startswith(self._members)

    def was_blank(self, marker: Any) -> bool:
        """Whether a node with this marker may have forgotten what is not there."""
        return not self.is_ours(marker) or marker.split(b" ")[2] != b"0"

    def heard_marker(self, marker: Any) -> None:
        """A node says this: learn of the longest ttl that it knows."""
        if self.is_ours(marker):
            longest = int(marker.rpartition(b" ")[2]) / 1000
            if longest > self._longest:
                self._longest = longest
                self._tails.clear()

    def take(self, key: Key, claim: str, ask: Ask, ballot: int, *, raising: bool = False) -> bytes:
        """The request for one node's vote; `raising`: what the claim has there becomes `ballot`."""
        if raising or ask.candidacy > 0:
            return self._take_more(key, claim, ask, ballot, raising=raising)
        kept = self._tails.get(id(ask))
        head = self._heads.get(key) or self._head(key)
        tail = kept[1] if kept is not None else self._tail(ask)
        secret = claim.encode()
        # A ballot has sixteen digits until the year 2286; `%d` of others would lie.
        digits = b"%d" % ballot
        return b"%b$%d\r\nincumbent1 %b \r\n$%d\r\n%b\r\n%b" % (
            head,
            12 + len(secret),
            secret,
            len(digits),
            digits,
            tail,
        )

    def _head(self, key: Key) -> bytes:
        if len(self._heads) >= _CACHED * 16:
            self._heads.clear()
        head = self._heads[key] = _take.open_call(self._take_keys(key), 8)
        return head

    def _take_keys(self, key: Key) -> tuple[str, ...]:
        at = self.places(key)
        return (at.main, at.floor, MARKER, at.past, at.fields)

    def _tail(self, ask: Ask) -> bytes:
        if len(self._tails) >= _CACHED:
            self._tails.clear()
        tail = pack(*self._ask_parts(ask)).partition(b"\r\n")[2]
        # By identity: see redis.dialect.
        self._tails[id(ask)] = (ask, tail)
        return tail

    def _take_more(self, key: Key, claim: str, ask: Ask, ballot: int, *, raising: bool) -> bytes:
        keys = self._take_keys(key)
        more: list[str | int] = ["+" if raising else "-"]
        if ask.candidacy > 0:
            keys += (self.places(key).candidates,)
            more.append(milliseconds(ask.candidacy))
        return _take.call(len(keys), *keys, _head_of(claim), ballot, *self._ask_parts(ask), *more)

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

    def read_vote(self, answer: Any, claim: str, where: str) -> Answer:
        """The vote. Raises Mismatch for an answer that was for another request."""
        if type(answer) is bytes:
            return Vote(_ballot_of(answer, claim))
        if type(answer) is list and len(answer) == 2:
            return Vote(_ballot_of(answer[0], claim), answer[1] / 1000)
        if type(answer) is list and len(answer) == 5:
            kind, raw, left, now, floor = answer
            said = kind.decode()
            seconds = left / 1000 if left >= 0 else -1.0
            if said == "young":
                self.heard_marker(raw)
            return No(said, raw, seconds, int(now), int(floor or 0), stage_of_value(raw, said))
        return Silent(*node_failure(answer, where))

    def refusal(self, no: No) -> Refused:
        """The contract's word for a majority's no."""
        kind = b"paused" if no.kind == "paused" else no.kind.encode()
        if no.kind == "paused":
            return Refused("paused", seen=f"pause {mark_of_value(no.raw)}")
        left = -1 if no.left < 0 else int(no.left * 1000)
        said = refused(kind, no.raw, left, b"%d" % no.now, "")
        return Refused(
            said.reason, said.holders, said.retry_after, f"lease {mark_of_value(no.raw)}"
        )

    # -- the rest -----------------------------------------------------------------------------

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        closed_for: float,
        reserve_for: str | None,
        now: int,
    ) -> bytes:
        """The request of a give; `now`, for people: unix us by the nodes' clocks."""
        held, ended = _head_of(claim, token).encode(), b" %d" % max(now, token or 0)
        if closed_for > 0:
            at = self.places(key)
            successor = (quoted(reserve_for),) if reserve_for else ()
            more = (ended, milliseconds(closed_for), *successor)
            return _give.call(2, at.main, at.floor, held, *more)
        head = self._gives.get(key) or self._give_head(key)
        return b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (head, len(held), held, len(ended), ended)

    def _give_head(self, key: Key) -> bytes:
        if len(self._gives) >= _CACHED * 16:
            self._gives.clear()
        at = self.places(key)
        head = self._gives[key] = _give.open_call((at.main, at.floor), 2)
        return head

    def revoke(self, key: Key, claim: str, ballot: int) -> bytes:
        """The request that takes a vote back, up to this ballot."""
        at = self.places(key)
        return _revoke.call(2, at.main, at.floor, _head_of(claim), ballot)

    def renew(self, batch: Sequence[Renewal]) -> tuple[bytes, bytes]:
        """One request for many leases, and what its answer begins with."""
        echo = f"{batch[0].claim}:{next(_echoes)}".encode()
        keys: list[bytes | str] = [MARKER]
        longest = milliseconds(max(self._longest, *(it.ttl for it in batch)))
        arguments: list[bytes | str | int] = [echo, self._members, self._quarantine(), longest]
        for it in batch:
            main, companion = self.naming.keys_of(it.key)
            keys += (main, companion[:-1] + b"b", companion)
            meta = b"-" if it.meta is None else b"=" + it.meta
            arguments += [_head_of(it.claim, it.token), milliseconds(it.ttl), meta]
        return _renew.call(len(keys), *keys, *arguments), echo

    def plant(self, renewal: Renewal, value: bytes, floor: bytes) -> bytes:
        """The request that plants a lease where the renewal saw it missing, with this floor."""
        at = self.places(renewal.key)
        ttl = milliseconds(renewal.ttl)
        keys = (at.main, at.floor, MARKER)
        quarantine = self._quarantine()
        return _plant.call(3, *keys, value, ttl, 86_400_000, self._members, quarantine, floor)

    def promise(self, key: Key, ballot: int, entry: str, held: ByClaim | None) -> bytes:
        """The request for a promise to change this entry: see promise.lua."""
        at = self.places(key)
        longest = milliseconds(self._longest)
        about = (ballot, self._members, longest, entry, _held_by(held))
        return _promise.call(3, at.fields, MARKER, at.main, *about)

    def accept(
        self,
        key: Key,
        ballot: int,
        edit: tuple[str, bytes | None] | None,
        held: ByClaim | None,
        state: int | Sequence[bytes],
    ) -> bytes:
        """The request to accept a change of this state, or of all these entries: see accept.lua."""
        at = self.places(key)
        entry, value = edit or ("", None)
        what = b"-" if value is None else b"=" + value
        before, entries = (str(state), ()) if isinstance(state, int) else ("=", tuple(state))
        keys = (at.fields, MARKER, at.main, at.floor)
        head = (ballot, self._members, before, _held_by(held))
        changed = (entry, what if entry else b"", milliseconds(_STATE_KEPT))
        return _accept.call(4, *keys, *head, *changed, *entries)

    def stand_by(self, key: Key, ask: Ask, unix_us: int) -> Step:
        """The asker stands by, though it asked no node for its vote."""
        line, till = self.places(key).candidates, unix_us // 1000 + milliseconds(ask.candidacy)
        return Step(
            pack("ZADD", line, till, quoted(ask.holder))
            + pack("ZREMRANGEBYRANK", line, "0", "-101")
            + pack("PEXPIRE", line, milliseconds(max(86_400.0, ask.candidacy))),
            3,
        )

    def state(self, key: Key, entries: Sequence[str]) -> Step:
        """The newest change that a node accepted, and these entries."""
        return Step(pack("HMGET", self.places(key).fields, "s", *entries), 1)

    def entries(self, key: Key) -> Step:
        """All entries."""
        return Step(pack("HGETALL", self.places(key).fields), 1)

    def value(self, key: Key) -> bytes:
        """The request for what is in the lease's place."""
        return pack("GET", self.places(key).main)

    def look(self, key: Key) -> bytes:
        """The same, of one who waits for its end."""
        return _look.call(1, self.places(key).main)

    def marker(self) -> Step:
        """The question for a node's marker."""
        return Step(pack("GET", MARKER), 1)

    def found(self, until_us: int) -> Step:
        """Mark a blank node as one of a new cluster, if it is not later than that by its clock."""
        return Step(_found.call(1, MARKER, self._founded(0.0), until_us), 1)

    def record(self, key: Key) -> Step:
        """All that is known of a key."""
        at = self.places(key)
        return Step(
            pack("TIME")
            + pack("GET", at.main)
            + pack("PTTL", at.main)
            + pack("HGETALL", at.fields)
            + pack("ZRANGE", at.candidates, "0", "-1", "WITHSCORES")
            + pack("GET", at.floor)
            + pack("GET", at.past)
            + pack("GET", MARKER),
            8,
        )

    def channel(self, key: Key) -> str:
        """Where it is told that something changed."""
        return self.places(key).floor


def _head_of(claim: str, token: int | None = None) -> str:
    return f"incumbent1 {claim} " if token is None else f"incumbent1 {claim} {token} "


def _ballot_of(answer: Any, claim: str) -> int:
    head, _, ballot = answer.rpartition(b" ")
    if head != b"incumbent1 " + claim.encode():
        raise Mismatch("the answer is another claim's")
    return int(ballot)


def node_failure(answer: Any, where: str) -> tuple[StoreError, bool]:
    """What an error that a node answered comes to, and whether it did something all the same."""
    if not isinstance(answer, hiredis.ReplyError):
        raise Mismatch(f"an answer of type {type(answer).__name__} was not expected")
    error = answered_error(str(answer), where)
    return error, isinstance(error, OutcomeUnknown)


def _held_by(held: ByClaim | None) -> str:
    return "" if held is None else _head_of(held.claim, held.token)


def stage_of_value(raw: bytes, kind: str) -> bytes:
    """For whose sake a node refuses: the claim; of a closing its ballot; a foreign value."""
    if kind == "paused":
        return b"paused"
    parts = raw.split(b" ", 3)
    if len(parts) < 4 or parts[0] != b"incumbent1":
        return raw
    return parts[1] if kind == "held" else b" ".join(parts[1:3])


def mark_of_value(raw: bytes | None) -> str:
    """A short mark of what was seen, the same for all nodes: without what each has of its own."""
    if not raw:
        return "-"
    parts = raw.split(b" ", 7)
    if len(parts) == 8 and parts[0] == b"incumbent1":
        raw = b" ".join((*parts[:3], *parts[5:]))
    return blake2s(raw, digest_size=8).hexdigest()
