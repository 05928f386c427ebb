"""The line of foreign clients, such as `etcdctl lock` and Go's `concurrency.Mutex`, and our place.

A foreign client puts a key of its own under the name, and has the name once no older key is left
there (github.com/etcd-io/etcd, client/v3/concurrency/mutex.go). Of ours, only one key counts:
`held`, which at most one client can create. Two keys under a name that one of ours may have:

    held    the lease itself
    ticket  the place in the foreign line for whichever of our clients is the next

    revision   7 ticket       9 foreign      12 held          15 foreign
               our waiter     waits for 7    granted by       waits for 7, 9 and 12
               joins                         ticket 7

- Without a foreign key a take needs no ticket: it compares that there is none. A foreign key that
  comes later waits for `held`.
- With foreign keys a take compares that the ticket still is the one that was seen, and that every
  other key is younger. Else a foreign client that is older may have the name.
- Once the lease was granted by a ticket, the ticket is attached to the etcd lease of `held`, moves
  with it, and is removed with it. A renewal proves both. Without the ticket, the oldest of the
  foreign clients that are older than `held` would have the name.
- So a ticket serves for one lease. Who waits then gets another one, behind the foreign keys that
  came meanwhile: both kinds have their turn.

Until it serves, the ticket is attached to the etcd lease of a process that waits (see `waiting`),
and only a hint: whether and when it goes makes no difference to anybody but who waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from incumbent.stores.etcd import kv
from incumbent.stores.etcd.kv import Entry, Kinds, Names

WAITS: Final = kv.b64("a waiter of incumbent")
"""The value of a ticket; foreign tools may show it."""


class Contenders(NamedTuple):
    """The keys under a name, from the oldest on.

    `keys`: the lease and the foreign keys; `holder`: the one that has the name, if any; `ticket`:
    the revision at which the ticket was created (0: there is none).
    """

    keys: list[Entry]
    holder: Entry | None
    ticket: int

    @property
    def turn(self) -> int:
        """The ticket, if all foreign keys wait for it."""
        return self.ticket if self.keys and self.holder is None else 0


def contenders(names: Names, entries: Iterable[Entry]) -> Contenders:
    """What the keys under a name say about who has it."""
    ordered = sorted(entries, key=lambda entry: entry.created)
    keys = [entry for entry in ordered if entry.key != names.ticket]
    ticket = next((entry.created for entry in ordered if entry.key == names.ticket), 0)
    holder = next((entry for entry in keys if entry.key == names.lease), None)
    if holder is None and keys and not 0 < ticket < keys[0].created:
        holder = keys[0]
    return Contenders(keys, holder, ticket)


def is_only_waited_for(kinds: Kinds) -> bool:
    """Whether nothing is known of a name but that there are waiters."""
    return [*kinds] == ["/lease"] and [rest for rest, _ in kinds["/lease"]] == ["ticket"]


def beside_ticket(names: Names) -> list[tuple[str, str]]:
    """The ranges of the lease and of foreign keys."""
    return [(names.leases, names.ticket), (f"{names.ticket}\0", kv.after(names.leases))]


def may_take(names: Names, ticket: int) -> list[str]:
    """The comparisons: the name is free for us, by that ticket, or (0) without foreign keys."""
    if not ticket:
        return [kv.absent(*area) for area in beside_ticket(names)]
    same = kv.created(names.ticket, ticket)
    return [kv.absent(names.lease), same, kv.none_before(names.leases, ticket)]
