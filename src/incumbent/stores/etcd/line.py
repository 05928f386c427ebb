"""The line of waiters for a name: a key for each waiter, in the order in which etcd created them.

    revision 7    !l/NAME/a/0   first: its turn      grant to 7: its key goes
    revision 9    !l/NAME/b/0                        grant to 9 or another: 7 counts it
    revision 12   !l/NAME/a/1                        key of 7 ends: 9 is the first

- A claim that is refused puts its key, and reads in the same request all that the rules need. So
  any number of claims join at once, without a comparison that could fail.
- The keys of a process with the same heartbeat are on one etcd lease of that ttl, which is kept
  alive while the claims wait. A waiter that is silent for so long loses its key, and its turn,
  wherever it stands in line: etcd's clock decides, whatever clocks the clients have.
- The rules refuse a take if another waiter is before it. A grant compares that the first in
  line is the one that was seen, unchanged, and removes the claim's own key. If another is the
  first, the grant counts in its key that it was overtaken: the count comes and goes with that key.
- No lease depends on the line: each take also compares what admits only one holder (see
  `foreign`). A line that is wrong costs the order, and never gives a second holder.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from incumbent.model import OVERTAKEN_MOST, Ask, Key, Queue, Queued, Refused
from incumbent.rules.record import Line, Waiter, micros
from incumbent.stores.etcd import foreign, kv
from incumbent.stores.etcd.incarnation import Cluster
from incumbent.stores.etcd.kv import EtcdProgram, KeyValue, Reply
from incumbent.stores.etcd.obstacles import OLDEST_FIRST, Obstacles
from incumbent.stores.etcd.places import EtcdPlace

IN_LINE: Final = "|"
"""Stands between the state that a waiter has seen, and the claim with which it stands in line."""
_OLDEST_ONE: Final = f'{OLDEST_FIRST},"limit":"1"'


def line_of(entries: Sequence[KeyValue], claim: str, mine: KeyValue | None) -> Line:
    """The line as the rules know it at the instant 0. Raises StoreUnavailable.

    It always is the first waiter's turn: once that is over, its key is gone. `mine`: the key of
    `claim`; the others are told apart by their keys.
    """
    if not entries:
        return Line()
    claims = [claim if entry is mine else entry.key for entry in entries]
    fields = kv.check_format(entries[0])
    heartbeat = max(1, micros(kv.number_in(fields.get("heartbeat"))))
    first = Waiter(claims[0], str(fields.get("holder", "")), heartbeat, bool(fields.get("fair")))
    # Of the others only the order matters, until one of them is the first.
    others = (Waiter(claim, "", 1, fair=False) for claim in claims[1:])
    return Line((first, *others), heartbeat, overtaken_in(entries[0]))


def overtaken_in(entry: KeyValue) -> int:
    """How many times in a row the waiter was overtaken."""
    return int(kv.number_in(entry.fields.get("overtaken")))


class TakeInLine:
    """What a take has to do with the line. `first`: the first in line that it overtakes, if any.

    `next_index`: which response to a grant has the first in line afterwards; 0: it does not ask.
    `joins`: the request under way joins the line if it is refused; `joined`: this take has done so.
    """

    def __init__(self, cluster: Cluster, key: Key, claim: str, ask: Ask) -> None:
        self._key, self._claim, self._ask = key, claim, ask
        self._places, self._turns = cluster.sessions.places, cluster.turns
        self._names = kv.names_of(cluster.prefix, key)
        self.first = self._overtaken_first()
        self.next_index = 0
        self.joins = self.joined = False

    def _overtaken_first(self) -> KeyValue | None:
        """The first in line, if this process has just overtaken it, and may do so again."""
        known = self._places.firsts.get(self._key)
        may_be_in_line = self._places.known_key(self._key, self._claim)
        if known is None or may_be_in_line or known.fields.get("fair"):
            return None
        return known if overtaken_in(known) < OVERTAKEN_MOST else None

    # -- refusals -----------------------------------------------------------------------------

    def entry_in(self, found: Obstacles) -> KeyValue | None:
        """The claim's key in the line that was found; another process may have put it there."""
        key, claim = self._places.known_key(self._key, self._claim), self._claim.encode()
        for entry in found.line:
            if (not key or entry.key == key) and claim in entry.value:
                return entry if entry.claim == self._claim else None
        return None

    def remember(self, found: Obstacles) -> EtcdPlace | None:
        """Remember the claim's place in the line that was found."""
        mine = self.entry_in(found)
        if mine is None:
            if self._ask.queue is not None or found.marker_value:
                # The line was read, and the place is lost.
                self._places.of(self._key).pop(self._claim, None)
            return None
        heartbeat = kv.seconds(kv.number_in(mine.fields.get("heartbeat")))
        place = EtcdPlace(
            mine.key, mine.created, mine.etcd_lease, heartbeat, self._ask.permits is not None, found
        )
        self._places.remember(self._key, self._claim, place)
        return place

    def let_first_listen(self, found: Obstacles) -> None:
        """Have the first of our waiters in the line that was found listen."""
        if self._ask.queue is not None and self._may_be_represented:
            self._turns.note_order(self._key, self._ours_in(found))

    def with_place(self, refused: Refused, found: Obstacles) -> Refused:
        """The refusal, with the place of a claim that is in line."""
        mine = self.entry_in(found)
        if mine is None or self._ask.queue is None:
            return refused
        shown = refused.reason, refused.holders, refused.retry_after, refused.seen
        return Queued(*shown, place=found.line.index(mine))

    def marked_in_line(self, refused: Refused) -> Refused:
        """The refusal, for a wait in line; candidates have to see every grant."""
        if not isinstance(refused, Queued) or self._ask.candidacy > 0:
            return refused
        return replace(refused, seen=f"{refused.seen}{IN_LINE}{self._claim}")

    def has_to_join(self, found: Obstacles, refused: Refused) -> bool:
        """Whether a claim without a place needs one: one waiter of a process represents all."""
        ask, turns = self._ask, self._turns
        if ask.queue is None or refused.reason == "permits":
            return False
        if not self._may_be_represented:
            return True
        return not any(turns.has_claim(self._key, claim) for claim in self._ours_in(found))

    def _ours_in(self, found: Obstacles) -> list[str]:
        """The claims of this process in the line that was found, in its order."""
        there = {entry.key for entry in found.line}
        places = self._places.of(self._key).copy()
        ours = [claim for claim, place in places.items() if place.key in there]
        return sorted(ours, key=lambda claim: places[claim].created)

    def join(self) -> EtcdProgram[list[str]]:
        """The operations: join the line, unless the claim is there already, or was given up."""
        queue = self._ask.queue
        if queue is None:
            return []
        etcd_lease = yield from self._places.keep_alive(kv.seconds(queue.heartbeat))
        return self._join_operations(queue, etcd_lease)

    def join_if_held(self) -> list[str]:
        """The operations that join the line if the name is held; none if that costs a request."""
        queue, known, self.joins = self._ask.queue, self._places.of(self._key), False
        if queue is None or self._ask.permits is not None or self._claim in known:
            return []
        etcd_lease = self._places.fresh_etcd_lease(kv.seconds(queue.heartbeat))
        if not etcd_lease or (self._may_be_represented and known):
            return []
        self.joins = True
        return [kv.nested([kv.exists(self._names.held)], self._join_operations(queue, etcd_lease))]

    @property
    def _may_be_represented(self) -> bool:
        ask = self._ask
        fair = ask.queue is not None and ask.queue.fair
        return not fair and ask.permits is None and ask.candidacy <= 0

    def _join_operations(self, queue: Queue, etcd_lease: str) -> list[str]:
        names, mine = self._names, self._places.key_for(self._key, self._claim)
        facts = {"heartbeat": queue.heartbeat, "fair": int(queue.fair)}
        who = {"claim": self._claim, "holder": self._ask.holder}
        value = kv.packed(format=kv.RECORD_FORMAT, **who, **facts)
        # Not if it was given up: nobody would take a late waiter out of the line again.
        missing = [kv.absent(mine), kv.absent(names.given_up(self._claim))]
        joins = [kv.nested(missing, [kv.put(mine, value, etcd_lease)])]
        if self._ask.permits is None:
            # And stand in the line of foreign clients, see `foreign`.
            ticket = kv.put(names.ticket, foreign.WAITS, etcd_lease)
            joins.append(kv.nested([kv.absent(names.ticket)], [ticket]))
        return joins

    # -- grants -------------------------------------------------------------------------------

    def comparisons(self, success: list[str], *, ticket: int) -> list[str]:
        """The comparisons: the line is as it was seen. Adds what a grant changes in it."""
        first, line = self.first, self._names.line
        place, self.next_index = self._places.place_of(self._key, self._claim), 0
        if place is not None:
            success += self._places.removal(self._key, self._claim, serves=ticket)
        if first is not None and (place is None or first.key != place.key):
            fields = {**first.fields, "overtaken": overtaken_in(first) + 1}
            success.append(kv.rewrite(first.key, kv.b64(json.dumps(fields))))
        if place is not None or first is not None:
            self.next_index = len(success)
            success.append(kv.read_all(line, _OLDEST_ONE))
        if first is not None:
            # By its modification: the count of those that overtook it is part of what was seen.
            return [kv.modified(first.key, first.modified)]
        if place is not None:
            return [kv.created(place.key, place.created), kv.none_before(line, place.created)]
        return [kv.free(line)]

    def note_granted(self, reply: Reply) -> None:
        """Remember what a grant has left of the line."""
        self._places.forget(self._key, self._claim)
        if not self.next_index:
            return
        left = kv.entries_in(reply["responses"][self.next_index])
        self._places.remember_first(self._key, left[0] if left else None)
        if not left:
            self._turns.let_next_take(self._key)

    def note_refused(self) -> None:
        """Remember that a request was refused: the line may differ from what was known."""
        self.first, self.joined = None, self.joined or self.joins
        self._places.remember_first(self._key, None)
