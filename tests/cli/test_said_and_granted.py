"""Whatever is on record: what is said of a name agrees with what a take gets at that instant.

The commands and the page run as they are, on a file whose clocks are moved by hand.
"""

from __future__ import annotations

import json
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from incumbent import clock
from incumbent.cron.fleet import Presence
from incumbent.cron.ledger import SLOT_KEEP, Ledger, SlotRecord, SlotState
from incumbent.cron.schedule import Every, slot_id
from incumbent.cron.spec import JobSpec
from incumbent.errors import StoreError
from incumbent.model import Ask, Granted, Key, Parting, Refused, Slot
from incumbent.page.rows import FleetReading, blocks_of
from incumbent.page.snapshot import SnapshotReader, fleet_of
from incumbent.page.view import View, entries_of
from incumbent.rules.notices import BREAK, PAUSE, RESIGN, encode_notice
from incumbent.runtime.link import Link
from incumbent.stores.findings import FREE, GRANTS, HELD, UNKNOWN, WAITING
from incumbent.stores.plan import run_blocking
from incumbent.stores.sqlite import SqliteEngine
from incumbent.stores.sqlite.host import Host
from incumbent.stores.url import open_engine
from tests import tiers
from tests.cli.tool import answer, incumbent
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

STOPPING = json.dumps({"state": "stopping", "host": "h", "pid": 7}).encode()
NAMES = ("lease", "pool/1", "nightly")
JOB = JobSpec(name="nightly", schedule=Every(60.0), command=("true",))

names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("take"), names, st.sampled_from(("", "once"))),
    st.tuples(st.just("take"), names, st.just("stands")),
    st.tuples(st.just("give"), names, st.sampled_from((0.0, 4.0, 4000.0))),
    st.tuples(st.just("reserve"), names, st.just(4.0)),
    st.tuples(st.just("pause"), names, st.booleans()),
    st.tuples(st.just("resign"), names, st.sampled_from(("", BREAK))),
    st.tuples(st.just("run"), st.just("nightly"), st.sampled_from((*SlotState,))),
    st.tuples(st.just("up"), st.just("nightly"), st.booleans()),
    st.tuples(st.just("pass"), st.just(""), st.sampled_from((0.5, 2.0, 4.5, 400.0, 5000.0))),
    st.tuples(st.just("reboot"), st.just(""), st.just(0)),
)


class World:
    """A file, the clocks of its host, and who was granted what."""

    def __init__(self, folder: str) -> None:
        self.now, self.wall, self.boots = 1_000.0, 1_795_239_030.0, 0
        self.url = f"sqlite://{folder}/leases.db"
        self.link = self.open()
        self.granted: dict[str, Granted] = {}
        self.claims = map("claim-{}".format, count())

    def read_wall(self) -> float:
        return self.wall

    def host(self) -> Host:
        return Host(lambda: self.now, self.read_wall, f"boot {self.boots}")

    def open(self) -> Link:
        path = Path(self.url.removeprefix("sqlite://"))
        return Link(SqliteEngine(path, host=self.host))

    def take(
        self: World | Server, name: str, ask: Ask, within: float = 5.0
    ) -> Granted | Refused | StoreError:
        key, until = Key("default", name), clock.now() + within
        try:
            outcome = self.link.store.take(key, next(self.claims), ask, until)
        except StoreError as error:
            return error
        assert isinstance(outcome, Granted | Refused)
        return outcome

    def do(self, what: str, name: str, value: Any) -> None:
        key, until = Key("default", name), clock.now() + 5.0
        granted = self.granted.get(name)
        if what == "take":
            slot = Slot("once", 1000.0) if value == "once" else None
            meta = STOPPING if value == "stands" else b""
            candidacy = 3.0 if value == "stands" else 0.0
            ask = Ask(3.0, f"holder of {name}", slot=slot, meta=meta, candidacy=candidacy)
            outcome = self.take(name, ask)
            if isinstance(outcome, Granted):
                self.granted[name] = outcome
        elif what in ("give", "reserve") and granted:
            reserved = "the next one" if what == "reserve" else None
            self.link.store.give(
                *(key, granted.claim, granted.token, until),
                parting=Parting(closed_for=value, reserve_for=reserved),
            )
        elif what == "pause":
            notice = encode_notice(who="ann", reason="test") if value else None
            self.link.store.put(key, PAUSE, notice, None, until)
        elif what == "resign" and granted:
            notice = encode_notice(who="ann", token=granted.token, kind=value)
            self.link.store.put(key, RESIGN, notice, None, until)
        elif what == "run":
            self.run(value)
        elif what == "up":
            presence = Presence(self.link, "default", "node-1")
            presence.write_sign([JOB]) if value else presence.remove_sign()
        elif what == "pass":
            self.now, self.wall = self.now + value, self.wall + value
        elif what == "reboot":
            self.link.store.close()
            self.now, self.boots = 5.0, self.boots + 1

    def run(self, end: SlotState) -> None:
        """A slot of the job, run as far as this state."""
        ledger = Ledger(self.link.port, Key("default", JOB.name))
        facts = {"schedule": "every 1m", "timezone": "UTC", "since": self.wall}
        run_blocking(ledger.register({}, facts))
        due = self.wall // 60 * 60
        if end in (SlotState.SKIPPED, SlotState.MISSED):
            run_blocking(ledger.record_unrun(SlotRecord(slot_id(due), end, due)))
            return
        slot = slot_id(due)
        outcome = self.take(
            JOB.name, Ask(3.0, "node-1", slot=Slot(slot, SLOT_KEEP), meta=slot.encode())
        )
        if isinstance(outcome, Granted):
            self.granted[JOB.name] = outcome
            began = SlotRecord(slot, SlotState.RUNNING, due, "node-1", outcome.token, self.wall)
            if run_blocking(ledger.begin(began)) and end is not SlotState.RUNNING:
                run_blocking(ledger.record_state(began, end, outcome.claim, ended=self.wall))


@contextmanager
def world() -> Iterator[World]:
    with ExitStack() as stack:
        made = World(stack.enter_context(tempfile.TemporaryDirectory()))
        kept = SqliteEngine.__init__.__kwdefaults__
        stack.enter_context(mock.patch.dict(kept, host=made.host))
        stack.enter_context(mock.patch.object(clock, "wall", made.read_wall))
        isolation = "incumbent.cli.doctor._check_isolation"
        stack.enter_context(mock.patch(isolation, return_value=("ok", "not asked", "")))
        stack.callback(made.link.close)
        yield made


def expected(outcome: Granted | Refused | StoreError) -> set[str]:
    """The words for a name of which this is what a take gets."""
    if isinstance(outcome, StoreError):
        return {UNKNOWN, WAITING}
    return {FREE if isinstance(outcome, Granted) else outcome.reason}


# -- what is said ----------------------------------------------------------------------------------

Said = dict[str, dict[str, Any]]
"""By the name: what each of them says of it."""


def page_of(url: str) -> dict[str, str]:
    """The state of each name on the page."""
    with closing(SnapshotReader(url, "default")) as reader:
        snapshot = reader.read()
        fleet = fleet_of(snapshot)
        reading = FleetReading(snapshot, fleet, entries_of(snapshot, fleet))
        rows = blocks_of(reading, View())["leases"]
        return {row.name: re.findall(r'class="state[^>]*>([^<]*)<', row.html)[0] for row in rows}


def ask_all(url: str) -> Said:
    said: Said = {}
    listed = {row["name"]: row for row in answer("-s", url, "status", "--all")}
    drawn = incumbent("-s", url, "status", "--all").stdout.splitlines()
    jobs = {job["name"]: job for job in answer("-s", url, "jobs")["jobs"]}
    page = page_of(url)
    for name in NAMES:
        status = answer("-s", url, "status", name)
        # One look has a second, and a busy machine needs more now and then.
        times = 1 if status["state"] == UNKNOWN else 20
        looks = (incumbent("-s", url, "wait", name, "--timeout", "0") for _ in range(times))
        waited = next((it for it in looks if it.returncode != 69), None)
        said[name] = {
            "status": status,
            "listed": listed.get(name),
            "row": next((line for line in drawn if line.startswith(f"{name} ")), None),
            "why": answer("-s", url, "why", name),
            "sentences": incumbent("-s", url, "why", name).stdout,
            "wait": waited.returncode if waited else 69,
            "history": answer("-s", url, "history", name),
            "holdings": incumbent("-s", url, "history", name).stdout,
            "job": jobs.get(name),
            "page": page.get(name),
        }
    return said


def check(
    name: str, said: dict[str, Any], outcome: Granted | Refused | StoreError, late: float = 0.001
) -> None:
    """All that is said of one name agrees with what a take got, `late` seconds later at most."""
    status, word = said["status"], said["status"]["state"]
    assert word in expected(outcome), said
    held = word == HELD
    assert said["why"]["state"] == word
    assert said["wait"] == {FREE: 0, UNKNOWN: 69}.get(word, 75)
    if said["listed"] is not None:
        assert all(said["listed"][key] == status[key] for key in ("state", "holder", "token"))
    assert (said["listed"] is None) <= (word in (FREE, UNKNOWN, WAITING))
    if said["row"] is not None:
        shown = re.split(r"\s{2,}", said["row"])[1]
        # A list says more: that the holder stops, or that the name flaps.
        assert shown == word or (held and shown == "stopping") or is_flapping(shown)
    if isinstance(outcome, Refused) and outcome.holders:
        by = outcome.holders[0]
        if held:
            assert (status["holder"], status["token"]) == (by.holder, by.token)
            assert status["ttl_left"] == pytest.approx(by.remaining, abs=late)
        if word == "reserved":
            assert status["reserved_for"] == by.holder
        if word in ("closed", "reserved"):
            assert status["closed_for"] == pytest.approx(by.remaining, abs=late)
    check_sentences(name, said, word)
    check_page(said, word)
    if said["job"] is not None:
        check_job(said, outcome)
    elif isinstance(outcome, Refused) and held:
        (now,) = [past for past in said["history"] if past["token"] == status["token"]]
        assert now["ended"] is None
        assert said["holdings"].count("holds it") == 1
    else:
        assert "holds it" not in said["holdings"]


def is_flapping(shown: str) -> bool:
    """Whether it is shown how the last terms ended, whatever a take would get now."""
    return shown == "flapping"


def check_sentences(name: str, said: dict[str, Any], word: str) -> None:
    lines = said["why"]["why"]
    shown = said["sentences"].splitlines()
    assert starts(shown) == starts([f"{name}: {line}" for line in lines])
    about_holders = [line for line in lines if line.startswith("held by ")]
    assert bool(about_holders) == (word == HELD)
    assert any(line.startswith("free") for line in lines) <= (word == FREE)
    assert any(line.startswith(UNKNOWN) for line in lines) == (word == UNKNOWN)
    if word == "paused":
        assert any(line.startswith("paused by ann (test)") for line in lines)


def starts(lines: list[str]) -> list[list[str]]:
    """The first words, without durations: where no clock stands still they differ."""
    return [re.sub(r"\b\d[\w.]*", "", line).split()[:3] for line in lines]


def check_page(said: dict[str, Any], word: str) -> None:
    shown = said["page"]
    assert said["job"] is None or shown is None
    if shown is not None and not is_flapping(shown):
        # The page says how the last term ended, and whether somebody waits.
        assert (
            shown in {"not held", "expired", "failed", "wanted"} if word == FREE else shown == word
        )


def check_job(said: dict[str, Any], outcome: Granted | Refused | StoreError) -> None:
    job, runs = (
        said["job"],
        {run["slot"]: run for run in said["history"]},
    )
    tokens = {by.token for by in outcome.holders} if isinstance(outcome, Refused) else set()
    held = expected(outcome) == {HELD}
    assert all(run["term"] in tokens for run in job["running"])
    on = {slot for slot, run in runs.items() if run["state"] in ("running", "waiting")}
    assert on == {run["slot"] for run in job["running"]}
    assert bool(on) <= held
    assert job["paused"] == (said["status"]["paused"] is not None)


# -- the test --------------------------------------------------------------------------------------

STRANGER = Ask(3.0, "somebody else")


@settings(max_examples=20)
@given(st.lists(steps, min_size=4, max_size=16))
@example([("take", "lease", "once"), ("give", "lease", 0.0)])
@example([("run", "nightly", SlotState.RUNNING), ("pass", "", 4.5)])
@example([*[("take", "lease", "stands"), ("reboot", "", 0)] * 3, ("pass", "", 4.5)])
@example([*[("take", "lease", "stands"), ("reboot", "", 0)] * 3, ("take", "lease", "")])
def test_what_is_said_of_a_name_is_what_a_take_gets(done: list[tuple[str, str, Any]]) -> None:
    with world() as here:
        for step in done:
            here.do(*step)
        said = ask_all(here.url)
        code = incumbent("-s", here.url, "doctor").returncode
        assert code == 0
        for name in NAMES:
            slots = said[name]["status"]["slots"]
            once = here.take(name, Ask(3.0, "somebody else", slot=Slot("once", 1000.0)))
            if isinstance(once, Granted):
                assert "once" not in slots
                here.link.store.give(
                    Key("default", name),
                    once.claim,
                    once.token,
                    clock.now() + 5,
                    parting=Parting(slot="once"),
                )
            check(name, said[name], here.take(name, STRANGER))
            if said[name]["status"]["state"] == FREE:
                assert isinstance(once, Granted) == ("once" not in slots)
                assert ("once" in (said[name]["status"]["why"] or "")) == ("once" in slots)


# -- states of the store ---------------------------------------------------------------------------


def test_a_file_that_somebody_keeps_locked_is_not_called_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("incumbent.page.snapshot._EXAMINE_EVERY", 0.0)
    with world() as here, closing(SnapshotReader(here.url, "default")) as reader:
        assert reader.read().grants == GRANTS
        with closing(sqlite3.connect(here.url.removeprefix("sqlite://"))) as stuck:
            stuck.execute("BEGIN IMMEDIATE")
            assert isinstance(here.take("lease", STRANGER, 0.1), StoreError)
            with monkeypatch.context() as short:
                short.setattr("incumbent.page.snapshot._EXAMINE_WITHIN", 0.1)
                assert reader.read().grants.word == UNKNOWN
        assert isinstance(here.take("lease", STRANGER), Granted)
        assert reader.read().grants == GRANTS


@pytest.mark.parametrize("command", ["status", "status lease", "why lease", "wait lease"])
def test_of_a_file_that_is_no_database_nothing_is_said(tmp_path: Path, command: str) -> None:
    (tmp_path / "leases.db").write_bytes(b"nothing" * 999)
    done = incumbent("-s", f"sqlite://{tmp_path}/leases.db", *command.split())
    assert (done.returncode, done.stdout) == (69, "")


class Server:
    """A Redis, with what a test needs of a World."""

    def __init__(self, server: RedisServer, options: str = "") -> None:
        self.server, self.url = server, f"{server.url}{options}"
        self.link = Link(open_engine(self.url))

    take = World.take
    claims = map("claim-{}".format, count())


def held(here: Server) -> None:
    assert isinstance(here.take("lease", Ask(600.0, "them")), Granted)


def closed(here: Server) -> None:
    give_back(here, Parting(closed_for=600.0))


def reserved(here: Server) -> None:
    give_back(here, Parting(closed_for=600.0, reserve_for="the next one"))


def used(here: Server) -> None:
    give_back(here, Parting(slot="other"))


def give_back(here: Server, parting: Parting) -> None:
    granted = here.take("lease", Ask(600.0, "them", slot=Slot("once", 999.0)))
    assert isinstance(granted, Granted)
    key = Key("default", "lease")
    here.link.store.give(key, granted.claim, granted.token, clock.now() + 5, parting=parting)


def paused(here: Server) -> None:
    notice = encode_notice(who="ann", reason="test")
    here.link.store.put(Key("default", "lease"), PAUSE, notice, None, clock.now() + 5)


def full(here: Server) -> None:
    used(here)
    here.server.cli("SET", "x", "y" * 2_000_000)
    here.server.cli("CONFIG", "SET", "maxmemory", "1mb")


def lonely(here: Server) -> None:
    """It wants a replica, and has none."""
    used(here)
    here.server.cli("CONFIG", "SET", "min-replicas-to-write", "1")


def snapshot_failed(here: Server) -> None:
    used(here)
    here.server.cli("CONFIG", "SET", "save", "3600 1")
    # A folder of that name cannot be replaced by the snapshot's file.
    (here.server.folder / "dump.rdb").mkdir()
    here.server.cli("BGSAVE")
    eventually(lambda: "rdb_last_bgsave_status:err" in here.server.cli("INFO", "persistence"))


@pytest.mark.left(tiers.STORES, "full")
@pytest.mark.server
@pytest.mark.parametrize(
    "begin",
    [held, closed, reserved, used, paused, full, lonely, snapshot_failed],
    ids=lambda it: it.__name__,
)
def test_what_is_said_of_a_name_on_redis_is_what_a_take_gets(begin: Any) -> None:
    with RedisServer() as server:
        here = Server(server, "?restart_wait=0")
        with closing(here.link):
            begin(here)
            said = ask_all(here.url)["lease"]
            check("lease", said, here.take("lease", STRANGER, 30.0), 60.0)


@pytest.mark.server
def test_a_redis_that_just_started_is_not_called_free() -> None:
    with RedisServer() as server:
        here = Server(server)
        with closing(here.link):
            outcome = here.take("lease", STRANGER)
            assert isinstance(outcome, StoreError)
            check("lease", ask_all(here.url)["lease"], outcome)
