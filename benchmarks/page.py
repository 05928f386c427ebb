"""What the page costs with 500 leases and 200 jobs: python -m benchmarks.page

Records are made here; what the store needs to read them comes on top.
"""

from __future__ import annotations

import time

from tests.page.fleet import big
from tests.page.records import NOW

from incumbent.page.documents import page
from incumbent.page.editions import Edition, next_edition
from incumbent.page.rows import FleetReading, blocks_of
from incumbent.page.snapshot import FleetView, fleet_of
from incumbent.page.view import View, entries_of

READINGS = 5


def main() -> None:
    """Print CPU milliseconds of the first reading and of those after it, and of one more view."""
    fleet: FleetView | None = None
    edition: Edition | None = None
    for number in range(1, READINGS + 1):
        shown = big(NOW + number)
        began = time.process_time()
        fleet = fleet_of(shown, fleet)
        reading = FleetReading(shown, fleet, entries_of(shown, fleet))
        read = time.process_time()
        edition = next_edition(edition, reading, blocks_of(reading, View()), number)
        html = page(shown, edition.blocks, View(), edition.read, "bench")
        took = time.process_time()
        judged, drawn = (1000 * (end - start) for start, end in ((began, read), (read, took)))
        size, changes = len(html.encode()) // 1024, len(edition.patch(number - 1)) // 1024
        print(f"{judged:4.0f} ms to judge the fleet, {drawn:3.0f} ms for a view of {size} KiB,")
        print(f"     {changes} KiB of changes to each follower")


if __name__ == "__main__":
    main()
