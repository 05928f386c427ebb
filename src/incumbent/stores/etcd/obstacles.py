"""What keeps a take out: all of it that is in the cluster, read in one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from incumbent.model import Key
from incumbent.rules.notices import PAUSE
from incumbent.stores.etcd import foreign, kv
from incumbent.stores.etcd.incarnation import Cluster
from incumbent.stores.etcd.kv import EtcdProgram, KeyValue, Names, Reply

OLDEST_FIRST: Final = ',"sort_order":"ASCEND","sort_target":"CREATE"'
"""Option of a read: from the oldest key on."""


class Obstacles(NamedTuple):
    """The reasons why a take may be refused, as of one revision.

    `line`: the waiters, from the first on; `ticket_in_turn`: see foreign.Contenders.
    """

    revision: int
    seen: str
    holders: tuple[KeyValue, ...] = ()
    foreign: tuple[KeyValue, ...] = ()
    pause: KeyValue | None = None
    closing: KeyValue | None = None
    slots: tuple[KeyValue, ...] = ()
    line: tuple[KeyValue, ...] = ()
    candidates: int = 0
    given_up: bool = False
    marker_value: str = ""
    ticket_in_turn: int = 0

    def __bool__(self) -> bool:
        beside = self.slots or self.line or self.ticket_in_turn or self.given_up
        return bool(beside or not self.free)

    @property
    def free(self) -> bool:
        """Whether nothing but the line keeps out a claim that wants the name alone."""
        return not (self.holders or self.pause or self.closing)


def read_obstacles(
    cluster: Cluster, key: Key, claim: str, *before: str, slot: str = ""
) -> EtcdProgram[Obstacles]:
    """Read all possible obstacles, after the operations `before`."""
    names = kv.names_of(cluster.prefix, key)
    reads = [
        *_wait_reads(names),
        kv.read(names.record, names.candidates, kv.NEWEST),
        kv.read(names.given_up(claim), more=kv.COUNT),
        kv.read(cluster.marker_key),
    ]
    if slot:
        reads.append(kv.read_all(slot))
    # In one step, also with what is done before: all of it is of one revision.
    reply = yield kv.transaction([*before, *reads])
    responses = reply["responses"][len(before) :]
    marker = kv.entries_in(responses[5])
    return _obstacles_in(names, reply, responses, responses[3])._replace(
        slots=tuple(kv.entries_in(responses[6])) if slot else (),
        given_up=kv.count_of(responses[4]) > 0,
        marker_value=marker[0].value64 if marker else "",
    )


def read_for_wait(cluster: Cluster, key: Key) -> EtcdProgram[Obstacles]:
    """Read what a wait in line depends on; `seen` says nothing of fields."""
    names = kv.names_of(cluster.prefix, key)
    reply = yield kv.transaction(_wait_reads(names))
    return _obstacles_in(names, reply, reply["responses"])


def _wait_reads(names: Names) -> list[str]:
    line = kv.read_all(names.line, OLDEST_FIRST)
    return [kv.read_all(names.contenders, OLDEST_FIRST), kv.read_all(names.switches), line]


def _obstacles_in(
    names: Names, reply: Reply, responses: Sequence[Reply], others: Reply | None = None
) -> Obstacles:
    entries, switches, line = map(kv.entries_in, responses[:3])
    found, by_key = foreign.contenders(names, entries), {entry.key: entry for entry in switches}
    newest = kv.entries_in(others) if others else []
    count = len(switches) + (kv.count_of(others) if others else 0)
    return Obstacles(
        kv.revision_of(reply),
        kv.seen_in(found.keys, [*switches, *newest], count),
        found.holders,
        tuple(found.foreign),
        by_key.get(names.field(PAUSE)),
        by_key.get(names.closing),
        line=tuple(line),
        ticket_in_turn=found.ticket_in_turn,
    )
