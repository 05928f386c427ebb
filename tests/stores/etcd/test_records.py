"""What a reader is told of a holder, from the key that it wrote."""

from __future__ import annotations

import json

from incumbent.stores.etcd.kv import RECORD_FORMAT, KeyValue, holding_of


def test_a_holder_has_held_since_it_wrote_so_by_the_wall_clock() -> None:
    facts = {"format": RECORD_FORMAT, "holder": "me", "claim": "c", "ttl": 10.0, "since": 1000.0}
    entry = KeyValue("/incumbent/n/!r/job", json.dumps(facts).encode(), 7, 7, "1")
    assert holding_of(entry, 100, {"1": 4.0}, 1025.0).held_for == 25.0
    # A clock that is behind the holder's own.
    assert holding_of(entry, 100, {"1": 4.0}, 990.0).held_for == 0.0
