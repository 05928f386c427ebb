"""A directory as registers: read a name's document, and replace it if nobody else has meanwhile.

The rules of a lease are incumbent's own. This says where their records are kept, by which clock
they end, and what a reboot means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.rules.codec import encoded, encoded_entry
from incumbent.rules.record import (
    NOTHING,
    Beside,
    LeaseRecord,
    dated,
    dated_value,
    moved,
    moved_value,
    without_holders,
)
from incumbent.stores.deciding import present
from incumbent.stores.registers import (
    ALL,
    Incarnation,
    Join,
    Joined,
    Place,
    Seen,
    Swap,
    Wanted,
    record_in,
    value_in,
)
from incumbent_directory.files import Files

__all__ = ["Moment", "Registers", "this_host"]


class Moment(NamedTuple):
    """An instant of the host, in microseconds: `now` counts since the boot with this id."""

    now: int
    wall: int
    boot: str


def this_host() -> Moment:
    """Now, by the clock that all processes of this host share, and that goes on in a suspend."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Moment(int(clock.now() * 1e6), int(clock.wall() * 1e6), boot)


class Registers:
    """See incumbent.stores.registers.Registers."""

    def __init__(self, folder: Path, moment: Callable[[], Moment]) -> None:
        self._where = f"directory://{folder}"
        self._files = Files(folder)
        self._moment = moment

    def load(self, wanted: Sequence[Wanted], until: float) -> list[Seen | StoreError]:
        """See Registers.load."""
        with self._files.locked(until):
            return [self._seen(each) for each in wanted]

    def swap(self, swaps: Sequence[Swap], until: float) -> list[Seen | StoreError | None]:
        """See Registers.swap: nobody else reads or writes while the lock is held."""
        with self._files.locked(until):
            return [self._swap(each) for each in swaps]

    def scan(self, namespace: str, prefix: str, until: float) -> list[tuple[Key, Seen]]:
        """See Registers.scan."""
        with self._files.locked(until):
            keys = [key for key in self._files.names() if key.namespace == namespace]
            found = [
                (key, self._seen(Wanted(key, ALL))) for key in keys if key.name.startswith(prefix)
            ]
            return [(key, seen) for key, seen in found if isinstance(seen, Seen)]

    def join(self, request: Join, until: float) -> Seen | StoreError:
        """See QuickRegisters.join: under the lock no version has to be compared."""
        key, at = request.key, self._moment()
        with self._files.locked(until):
            there = self._seen(Wanted(key, ALL))
            if isinstance(there, Seen):
                joined = Joined(None, request.waiter, request.looks_in, at.now)
                there = there._replace(joined=(joined,))
                self._write(key, there, present(there), there.beside, at)
            return there

    def _seen(self, wanted: Wanted) -> Seen | StoreError:
        try:
            return self._read(wanted.key, self._files.read(wanted.key), self._moment())
        except StoreError as error:
            return error

    def _read(self, key: Key, document: dict[str, Any] | None, at: Moment) -> Seen:
        incarnation = Incarnation(at.boot)
        if document is None:
            return Seen(NOTHING, 0, at.now, at.wall, incarnation)
        record = record_in(document["record"].encode(), key, self._where)
        beside = {
            (kind, name): value_in(text.encode(), key, (kind, name), self._where)
            for kind, name, text in document["beside"]
        }
        if document["boot"] != at.boot:
            # Every holder has ended with its host, and the clock has begun anew. What goes on (a
            # closing, a used slot) is counted by the wall clock in between.
            by = document["wall_ahead"] - (at.wall - at.now)
            record = moved(without_holders(record), by)
            beside = {which: moved_value(value, by) for which, value in beside.items()}
        return Seen(record, document["version"], at.now, at.wall, incarnation, beside=beside)

    def _swap(self, swap: Swap) -> Seen | StoreError | None:
        key, at = swap.wanted.key, self._moment()
        there = self._seen(Wanted(key, ALL))
        if isinstance(there, StoreError):
            return there
        if (there.version, there.incarnation) != (swap.seen.version, swap.seen.incarnation):
            return there
        if at.now < swap.not_before:
            return StoreUnavailable(f"{self._where}: the clock of this host stepped back")
        beside = dict(there.beside)
        for kind, name, value in swap.entries:
            beside.pop((kind, name), None)
            if value is not None:
                beside[kind, name] = dated_value(value, at.now)
        self._write(key, there, dated(swap.record, at.now), beside, at)
        return None

    def _write(
        self,
        key: Key,
        there: Seen,
        record: LeaseRecord,
        beside: Mapping[Place, Beside],
        at: Moment,
    ) -> None:
        document = {
            # Not below the clock, so that none comes back after the file was removed.
            "version": max(there.version + 1, at.wall),
            "boot": at.boot,
            "wall_ahead": at.wall - at.now,
            "record": encoded(record).decode(),
            "beside": [[*which, encoded_entry(value).decode()] for which, value in beside.items()],
        }
        self._files.write(key, document)
