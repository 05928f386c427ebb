"""Why 05:30 did not run, in words: from what is on record, and who is up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from incumbent.cli.jobs import describe_up
from incumbent.cli.why import explain_job
from incumbent.cron.fleet import PRESENCE, PRESENT_EVERY, Presence, SignOfLife, presences
from incumbent.cron.judging import MISSED_AFTER, NOT_CLAIMED
from incumbent.cron.ledger import JOB, SlotRecord, SlotState, encode
from incumbent.cron.schedule import Every, slot_id
from incumbent.cron.spec import JobSpec
from incumbent.model import Field, Holding, Key, Past, Record
from incumbent.runtime.link import Link
from tests.support.faulty import FaultyEngine

DUE = 1_795_239_000.0
"""2026-11-21T05:30:00Z."""
NOW = DUE + 4 * 3600
FACTS = {"schedule": "30 5 * * * (UTC)", "timezone": "UTC", "since": DUE - 86_400}
RUN = SlotRecord(slot_id(DUE), SlotState.OK, DUE, "i1", 7, DUE + 0.1, DUE + 9)
UP = [SignOfLife("i1", DUE, NOW)]
SPEC = JobSpec(name="job", schedule=Every(60), command=("true",))


def said(
    *runs: SlotRecord,
    at: float | None = DUE,
    now: float = NOW,
    up: list[SignOfLife] | None = None,
    **more: object,
) -> str:
    fields = {f"run/{run.slot}": Field(encode(run), 1) for run in runs}
    facts = {**FACTS, **{key: it for key, it in more.items() if key in ("since", "jitter")}}
    if "timezone" in more:
        # An outside scheduler's, as of `run --once-per`: it needs no instance.
        del facts["timezone"]
    fields[JOB] = Field(json.dumps(facts).encode(), 1)
    if "pause" in more:
        fields["pause"] = Field(json.dumps(more["pause"]).encode(), 1)
    record = Record(
        Key("n", "job"),
        (Holding("i1", 7, 9.0),) if "held" in more else (),
        fields=fields,
        history=(Past("i1", 7, DUE + 60.0),) if "past" in more else (),
    )
    return "\n".join(explain_job(record, UP if up is None else up, now, at))


def skipped(why: str) -> SlotRecord:
    return SlotRecord(slot_id(DUE), SlotState.SKIPPED, DUE, why=why)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (said(RUN), f"slot {slot_id(DUE)}: ok on i1"),
        (said(skipped("paused by ann (freeze)")), "skipped: paused by ann (freeze)"),
        (said(RUN, pause={"who": "ann"}), "paused by ann: no slot runs until `unpause`"),
        (said(skipped("held by i2, which runs x")), "skipped: held by i2, which runs x"),
        (
            said(SlotRecord(slot_id(DUE), SlotState.MISSED, DUE, why=NOT_CLAIMED)),
            "missed: no instance claimed it in time: none was up, or none reached the store",
        ),
        (
            said(
                SlotRecord(
                    slot_id(DUE + 60), SlotState.MISSED, DUE + 60, why="nobody", count=3, first=DUE
                )
            ),
            "(and 2 before it): missed x3",
        ),
        (said(replace(RUN, started=DUE + 30)), "it began 30s after its slot"),
        (said(replace(RUN, started=DUE + 30), jitter=60), "within its jitter of 1m, as planned"),
        (said(RUN, past=True), "the clock of i1 was 59.9s behind the store's"),
        (said(replace(RUN, state=SlotState.RUNNING), held=True), "running on i1"),
        (said(replace(RUN, state=SlotState.RUNNING)), "lost on i1: i1 vanished"),
        (said(), "nothing is on record: no instance was up, or none reached the store"),
        (said(now=DUE + MISSED_AFTER / 2), "nothing is on record yet"),
        (said(at=DUE + 60), "has no slot at"),
        (said(at=DUE + 10 * 86_400), "it is not due before"),
        (said(since=DUE + 5), "known only since"),
        (said(RUN, at=None), f"slot {slot_id(DUE)}: ok on i1"),
        (said(at=None), "nothing is on record yet"),
        (said(up=[]), "no instance is up: nothing will run"),
        (said(), "1 up: i1"),
    ],
)
def test_each_reason_has_its_words(text: str, words: str) -> None:
    assert words in text


def test_what_an_outside_scheduler_starts_needs_no_instance() -> None:
    text = said(RUN, up=[], timezone=None)
    assert "ok on i1" in text
    assert "no instance is up" not in text


# -- instances that say nothing any more -----------------------------------------------------------


@pytest.mark.parametrize(("every", "after"), [(5.0, 15.0), (30.0, 90.0), (1.0, 10.0)])
def test_an_instance_is_silent_once_three_of_its_own_signs_of_life_are_overdue(
    every: float, after: float
) -> None:
    peer = SignOfLife("i1", DUE, NOW, every=every)
    assert describe_up([peer], NOW + after - 1) == "1 up: i1"
    assert "silent: i1 for " in describe_up([peer], NOW + after)


def test_how_often_an_instance_writes_is_on_record_and_a_ttl_at_most() -> None:
    engine = FaultyEngine()
    link = Link(engine)
    Presence(link, "n", "i1", every=7.0).write_sign([SPEC])
    record = link.store.read(Key("n", PRESENCE), link.port.now() + 5)
    (peer,) = presences(record)
    assert (peer.instance, peer.every) == ("i1", 7.0)
    older = Record(record.key, fields={"up/i2": Field(b'{"since": 1, "seen": 2}', 1)})
    assert presences(older)[0].every == PRESENT_EVERY
