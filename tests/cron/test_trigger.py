"""`trigger` sees that its run is on record, even if no hint tells of it."""

from __future__ import annotations

from typing import Any

import pytest

from incumbent import clock
from incumbent.cli.main import main
from incumbent.cron.fleet import CONTROL, triggers
from incumbent.cron.ledger import JOB, RUN, Ledger, SlotRecord, SlotState, encode, runs_of
from incumbent.model import Ask, Key, PutOutcome
from incumbent.runtime.link import link_for
from incumbent.stores.base import Store
from incumbent.stores.plan import run_blocking

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


@pytest.fixture
def store() -> Store:
    store = link_for(STORE).store
    store.put(JOB_KEY, JOB, b"{}", None, clock.now() + 30)
    return store


def trigger_in_vain(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["-s", STORE, "trigger", "job", "--timeout", "0.2s"])
    return code, capsys.readouterr().err


def test_an_instance_that_waits_for_its_turn_does_not_run_what_was_withdrawn(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = trigger_in_vain(capsys)
    assert (code, "no instance took it" in said) == (75, True)
    (run, _) = list(runs_of(store.read(JOB_KEY, clock.now() + 30).fields).values())[-1]
    assert (run.state, run.why.partition(" by ")[0]) == (SlotState.SKIPPED, "withdrawn")
    ledger = Ledger(link_for(STORE).port, JOB_KEY)
    begun = SlotRecord(run.slot, SlotState.RUNNING, run.due, "i1", 1, run.due)
    assert not run_blocking(ledger.begin(begun))


def test_a_run_that_begins_while_its_trigger_is_withdrawn_is_reported_as_begun(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = store.put

    def begin_first(key: Key, field: str, value: bytes | None, *rest: Any) -> PutOutcome:
        if field.startswith(RUN) and value is not None:
            slot = field.removeprefix(RUN)
            begun = SlotRecord(slot, SlotState.RUNNING, 1e9, "i1", 1, 1e9)
            put(key, field, encode(begun), None, clock.now() + 30)
        return put(key, field, value, *rest)

    monkeypatch.setattr(store, "put", begin_first)
    code, said = trigger_in_vain(capsys)
    assert (code, "running on i1" in said) == (0, True)
