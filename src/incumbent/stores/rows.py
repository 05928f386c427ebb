"""What stores in SQL tables share: how rows are read, and which renewals go together.

The record of a name is one row (rules.columns), with the history in it as JSON. The values beside
it, and those who joined its line, are rows of another table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from incumbent.errors import StoreError
from incumbent.model import Key, Renewal
from incumbent.rules.codec import Unreadable
from incumbent.rules.columns import Columns, record_of
from incumbent.rules.record import Instant, LastGrant, micros
from incumbent.stores.names import flat
from incumbent.stores.registers import Place, Seen, joined_in, unreadable, value_in

_EDITED: Final = Unreadable("was cut short, or edited: its checksum does not match")


class Row(NamedTuple):
    """The row of a record. `sound`: it is as it was written, and of this incarnation.

    `past`: the history by place, each a list of a LastGrant's parts; empty if not asked for.
    """

    sound: bool
    version: int
    written: Instant
    past: str
    columns: Columns


def row_of(sound: object, version: int, written: Instant, past: str, *columns: Any) -> Row:
    """The row of what a statement selects, in this order."""
    return Row(bool(sound), version, written, past, Columns(*columns))


class RowBeside(NamedTuple):
    """The row of a value beside a record, or (`kind` "join") of a waiter, written `at`."""

    kind: str
    part: bytes
    text: bytes
    at: Instant


def seen_in(
    key: Key, row: Row | None, beside: Iterable[RowBeside], nothing: Seen, where: str
) -> Seen | StoreError:
    """What the rows of a name say; `nothing`: what is seen of a name without any."""
    seen, values, joined = nothing, dict[Place, Any](), nothing.joined
    try:
        if row is not None:
            seen, past = _record_in(key, row, nothing, where), json.loads(row.past or "{}")
            values = {("past", place): LastGrant(*parts) for place, parts in past.items()}
        for kind, part, text, at in beside:
            if kind == "join":
                joined = (*joined, joined_in(text, at, key, where))
            else:
                place = kind, part.decode()
                values[place] = value_in(text, key, place, where, at)
    except StoreError as error:
        return error
    return seen._replace(beside=values, joined=joined)


def _record_in(key: Key, row: Row, nothing: Seen, where: str) -> Seen:
    """Raises StoreUnavailable for a record that cannot be read."""
    try:
        if not row.sound:
            raise _EDITED
        return nothing._replace(record=record_of(row.columns, row.written), version=row.version)
    except Unreadable as error:
        raise unreadable(f"the record of {flat(key)}", where, error) from error


def lease_of(renewal: Renewal) -> str:
    """The name, claim and token of a lease in one text."""
    return f"{flat(renewal.key)} {renewal.claim} {renewal.token}"


def by_ttl(
    renewals: Sequence[Renewal], epoch: str, most: int
) -> Iterator[tuple[int, list[str], list[str]]]:
    """The renewals that may change nothing but the end of a plain record, at most so many at once.

    Of each part the ttl in microseconds, the leases (`lease_of`), and their names.
    """
    groups: dict[int, dict[str, str]] = {}
    for it in renewals:
        if it.meta is None and not it.shared and it.epoch == epoch:
            # By lease: one that is named twice is one row, and would be counted
            # as one renewed of two.
            groups.setdefault(micros(it.ttl), {})[lease_of(it)] = flat(it.key)
    for ttl, group in groups.items():
        leases = list(group)
        for at in range(0, len(leases), most):
            some = leases[at : at + most]
            yield ttl, some, [group[lease] for lease in some]
