"""`trigger` sees that its run is on record, even if no hint tells of it."""

from __future__ import annotations

import pytest

from incumbent import clock
from incumbent.cli.main import main
from incumbent.cron.fleet import CONTROL, triggers
from incumbent.cron.ledger import JOB, RUN, SlotRecord, SlotState, encode
from incumbent.model import Ask, Key
from incumbent.runtime.link import link_for

STORE = "memory:trigger-without-a-hint"
JOB_KEY = Key("default", "job")


def test_a_run_put_on_record_before_the_listener_listens_is_seen_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = link_for(STORE).store
    waits: list[float] = []

    def unhinted(key: Key, seen: str, until: float) -> None:
        # Its field was written just before: a store whose `seen` is the lease's says nothing.
        waits.append(until - clock.now())
        (trigger,) = triggers(store.read(Key("default", CONTROL), clock.now() + 30))
        run = SlotRecord(trigger.slot, SlotState.RUNNING, trigger.when, "i1", 1, trigger.when)
        store.put(JOB_KEY, RUN + run.slot, encode(run), None, clock.now() + 30)

    store.put(JOB_KEY, JOB, b"{}", None, clock.now() + 30)
    store.take(JOB_KEY, "claim", Ask(15.0, "i1"), clock.now() + 30)
    monkeypatch.setattr(store, "wait_change", unhinted)
    assert main(["-s", STORE, "trigger", "job"]) == 0
    assert len(waits) == 1
    assert waits[0] <= 0.3
