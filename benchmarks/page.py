"""What the page costs with 1,000 leases and 300 jobs: python -m benchmarks.page

Records are made here; what the store needs to read them comes on top.
"""

from __future__ import annotations

import time
from dataclasses import replace

from tests.page.records import NOW, held, job, record, snapshot, switch

from incumbent.cron.ledger import SlotRecord, SlotState
from incumbent.cron.schedule import slot_id
from incumbent.model import Holding, Record
from incumbent.page.documents import lasting_blocks, page, timed_blocks
from incumbent.page.editions import Edition, next_edition
from incumbent.page.snapshot import FleetView, Snapshot, fleet_of

LEASES, JOBS, SLOTS, READINGS = 1000, 300, 20, 5


def main() -> None:
    """Print milliseconds of the first reading and of those after it, a third of leases renewed."""
    fleet: FleetView | None = None
    edition: Edition | None = None
    for number in range(READINGS):
        shown = _records(number)
        began = time.process_time()
        fleet, edition, size = _render(shown, fleet, edition, number + 1)
        took = 1000 * (time.process_time() - began)
        changed = len(edition.patch(number)) // 1024
        print(f"{took:4.0f} ms for {size // 1024} KiB, {changed} KiB of changes to each follower")


def _render(
    shown: Snapshot, fleet: FleetView | None, before: Edition | None, number: int
) -> tuple[FleetView, Edition, int]:
    fleet = fleet_of(shown, fleet)
    blocks = lasting_blocks(shown, fleet) | timed_blocks(shown, fleet, "1h")
    edition = next_edition(before, shown, blocks, number)
    return fleet, edition, len(page(shown, blocks, "1h", "", edition.read, "bench"))


def _records(number: int) -> Snapshot:
    now = NOW + number
    leases = [_lease(place, number) for place in range(LEASES)]
    up = record("@cron/up", fields=switch("up/node-1", since=NOW, seen=now, jobs=JOBS))
    shown = snapshot(*leases, *(_job(place) for place in range(JOBS)), up)
    return replace(shown, now=now, read_at=now)


def _lease(place: int, number: int) -> Record:
    left = 15.0 - (number + place) % 3
    holding = Holding(f"node-{place % 5}:41", 7, left, 15.0, 60.0 + number, claim=f"{place:032x}")
    return held(f"shard/{place:04}", holdings=(holding,))


def _job(place: int) -> Record:
    runs = []
    for slot in range(SLOTS):
        due = NOW - 170 * (SLOTS - slot) - place
        state = SlotState.FAILED if slot % 9 == 8 else SlotState.OK
        runs.append(
            SlotRecord(slot_id(due), state, due, "node-1", 7, due, due + 40, 0, output="done\n")
        )
    zone = "Europe/Berlin"
    return job(f"job-{place:03}", *runs, schedule=f"*/5 * * * * ({zone})", timezone=zone)


if __name__ == "__main__":
    main()
