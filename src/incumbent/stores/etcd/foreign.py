"""The line of foreign clients, such as `etcdctl lock` and Go's `concurrency.Mutex`, and our place.

A foreign client puts a key of its own under the name, and has the name once no older key is left
there (github.com/etcd-io/etcd, client/v3/concurrency/mutex.go). The keys of ours under a name:

    held      the lease, which at most one client can create
    shared/.  instead, the leases of those who share the name; none is granted beside a foreign key
    ticket    the place in the foreign line for whichever of our clients is the next

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
- So a ticket serves for one lease only. The next of our waiters gets a new ticket, behind the
  foreign keys that came meanwhile, so that both kinds have their turn.

Until it serves, the ticket is attached to the etcd lease of a waiter's place in our own line (see
`line`), and is only a hint: if it disappears, only our waiters are affected.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from incumbent.stores.etcd import kv
from incumbent.stores.etcd.kv import KeyValue, Kinds, Names

WAITS: Final = kv.b64("a waiter of incumbent")
"""The value of a ticket; foreign tools may show it."""


class Contenders(NamedTuple):
    """The keys under a name, from the oldest on.

    `keys`: all but the ticket; `holders`: those that have the name; `foreign`: the foreign ones;
    `ticket`: the revision at which the ticket was created (0: there is none).
    """

    keys: list[KeyValue]
    holders: tuple[KeyValue, ...]
    foreign: list[KeyValue]
    ticket: int

    @property
    def ticket_in_turn(self) -> int:
        """The ticket, if all foreign keys wait for it."""
        return self.ticket if self.keys and not self.holders else 0


def contenders(names: Names, entries: Iterable[KeyValue]) -> Contenders:
    """What the keys under a name say about who has it."""
    ordered = sorted(entries, key=lambda entry: entry.created)
    keys = [entry for entry in ordered if entry.key != names.ticket]
    ticket = next((entry.created for entry in ordered if entry.key == names.ticket), 0)
    ours = [entry for entry in keys if is_ours(names, entry.key)]
    foreign = [entry for entry in keys if entry not in ours]
    # With our ticket before every foreign key, all foreign clients wait, and nobody has the name.
    holders = ours or ([] if foreign and 0 < ticket < foreign[0].created else foreign[:1])
    return Contenders(keys, tuple(holders), foreign, ticket)


def is_ours(names: Names, key: str) -> bool:
    """Whether one of ours holds the name by this key."""
    return key == names.held or key.startswith(names.sharers)


def is_only_waited_for(kinds: Kinds) -> bool:
    """Whether the only key under a name is a ticket: then it is only known that somebody waits."""
    return [*kinds] == ["/contender"] and [rest for rest, _ in kinds["/contender"]] == ["ticket"]


def ranges_without_ticket(names: Names) -> list[tuple[str, str]]:
    """The ranges of the lease and of foreign keys."""
    return [(names.contenders, names.ticket), (f"{names.ticket}\0", kv.after(names.contenders))]


def may_take(names: Names, ticket: int) -> list[str]:
    """The comparisons: the name is free for us, by that ticket, or (0) without foreign keys."""
    if not ticket:
        return [kv.absent(*area) for area in ranges_without_ticket(names)]
    nobody = kv.absent(names.held, kv.after(names.sharers))
    same = kv.created(names.ticket, ticket)
    return [nobody, same, kv.none_before(names.contenders, ticket)]


def may_share(names: Names, permits: int, seat: str) -> list[str]:
    """The comparisons: the seat is free, and every holder asked with the same number of permits.

    There are as many seats as permits, so no request has to count the holders. Beside a foreign key
    nobody is let in: the foreign client waits for older keys only, and would have the name once
    those are gone.
    """
    area = names.seats(permits)
    # All keys but the ticket and ours: whatever stands there is of a foreign client.
    beyond = kv.absent(f"{names.ticket}\0", kv.after(names.contenders))
    others = [kv.absent(names.contenders, area), kv.absent(kv.after(area), names.ticket)]
    return [kv.absent(seat), *others, beyond]
