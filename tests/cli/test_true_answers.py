"""No sentence of `status`, `why`, `wait` and `doctor` is false when a take would be refused."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.cli.table import COMMANDS
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Key
from incumbent.runtime.link import link_for
from incumbent.stores.sqlite import SqliteEngine
from tests.cli.tool import answer, incumbent
from tests.support.servers import RedisServer


@pytest.mark.server
def test_a_store_that_grants_nothing_yet_says_so_and_not_free() -> None:
    with RedisServer() as server:
        refused = incumbent("-s", server.url, "run", "job", "--", "true")
        assert refused.returncode == 69
        state = answer("-s", server.url, "status", "job")
        assert state["state"] == "waiting"
        assert "it grants nothing yet" in state["why"]
        why = incumbent("-s", server.url, "why", "job").stdout
        assert "job: waiting: nobody is given a lease yet: " in why
        assert "free" not in why
        waited = incumbent("-s", server.url, "wait", "job", "--timeout", "1s")
        assert waited.returncode == 75
        assert "waiting: nobody is given a lease yet: " in waited.stderr
        listed = incumbent("-s", server.url, "status").stdout
        assert "waiting: nobody is given a lease yet: " in listed


@pytest.mark.server
def test_a_record_that_survived_a_restart_does_not_hide_that_nothing_is_granted() -> None:
    with RedisServer() as server:
        url = f"{server.url}?restart_wait=0"
        store = link_for(url).store
        store.take(Key("default", "job"), "c" * 32, Ask(3600.0, "h"), clock.now() + 30)
        link_for(url).close()
        server.cli("SAVE")
        server.restart()
        for words in (("status", "job"), ("why", "job"), ("status",)):
            said = incumbent("-s", f"{server.url}?restart_wait=10m", *words).stdout
            assert "held" in said
            assert "waiting: nobody is given a lease yet: " in said
        assert answer("-s", url, "status", "job")["state"] == "held"
        assert "waiting" not in incumbent("-s", url, "why", "job").stdout


@pytest.mark.server
def test_a_server_without_memory_for_a_lease_is_not_called_free() -> None:
    with RedisServer() as server:
        url = f"{server.url}?restart_wait=0"
        assert answer("-s", url, "status", "job")["state"] == "free"
        server.cli("CONFIG", "SET", "maxmemory", "1mb")
        server.cli("SET", "x", "y" * 2_000_000)
        server.cli("CONFIG", "SET", "maxmemory", "500kb")
        assert incumbent("-s", url, "run", "job", "--", "true").returncode == 69
        state = answer("-s", url, "status", "job")
        assert state["state"] == "waiting"
        assert "out of memory" in state["why"]


@pytest.fixture
def unexamined(store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that answers a read, and no diagnosis."""
    incumbent("-s", store, "-q", "run", "job", "--", "true")

    def fails(*_: object) -> None:
        raise StoreUnavailable("connection reset")

    monkeypatch.setattr(SqliteEngine, "diagnose", fails)
    return store


def test_a_store_that_cannot_be_examined_is_neither_free_nor_waiting(unexamined: str) -> None:
    ask = partial(answer, "-s", unexamined)
    for state in (ask("status", "job"), *ask("status", "--all"), ask("wait", "job", "--timeout=0")):
        assert state["state"] == "cannot tell"
        assert state["why"] == "whether the store gives leases now: connection reset"
    say = partial(incumbent, "-s", unexamined)
    assert "cannot tell: whether the store gives leases now: " in say("why", "job").stdout
    assert "free" not in say("why", "job").stdout
    waited = say("wait", "job", "--timeout", "1s")
    assert (waited.returncode, "gave up" in waited.stderr) == (69, True)


def test_a_name_that_is_held_needs_no_examination(unexamined: str) -> None:
    link_for(unexamined).store.take(Key("default", "job"), "c", Ask(9.0, "h"), float("inf"))
    assert answer("-s", unexamined, "status", "job")["state"] == "held"
    for words in (("status", "job"), ("status",), ("why", "job")):
        said = incumbent("-s", unexamined, *words).stdout
        assert "held" in said
        assert "cannot tell" not in said


def test_a_used_slot_is_not_called_free_for_everybody(store: str) -> None:
    incumbent("-s", store, "-q", "run", "job", "--slot", "s1", "--", "true")
    assert incumbent("-s", store, "-q", "run", "job", "--slot", "s1", "--", "true").returncode == 75
    assert (
        "but not for a run of a used slot: s1 for another"
        in (answer("-s", store, "status", "job")["why"])
    )


def test_the_name_of_a_pool_tells_of_its_places(store: str) -> None:
    for place in ("gpu/1", "gpu/2"):
        ask = Ask(30.0, f"holder of {place}")
        key = Key("default", place)
        outcome = link_for(store).store.take(key, place, ask, float("inf"))
        assert isinstance(outcome, Granted)
    why = incumbent("-s", store, "why", "gpu").stdout
    assert "a pool of this name: 2 of the 2 places on record are held" in why
    assert "gpu/2: held by holder of gpu/2" in why
    status = incumbent("-s", store, "status", "gpu").stdout
    assert "place  gpu/2: held by holder of gpu/2" in status


def test_a_store_that_is_away_is_neither_held_nor_free(tmp_path: Path) -> None:
    done = incumbent("-s", f"redis+unix://{tmp_path}/no.sock", "status", "job")
    assert (done.returncode, done.stdout) == (69, "")


# -- what programs read ----------------------------------------------------------------------------


def envelope(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(incumbent(*words, "--json").stdout)
    return found


@pytest.mark.parametrize(
    "words",
    ["status", "status job", "why job", "wait job", "history job", "jobs", "doctor", "pause job"],
)
def test_every_answer_has_the_same_envelope(store: str, words: str) -> None:
    found = envelope("-s", store, "-N", "fleet", *words.split())
    assert list(found) == ["command", "namespace", "time", "result"]
    assert (found["command"], found["namespace"]) == (words.split(maxsplit=1)[0], "fleet")
    assert found["command"] in COMMANDS
    assert found["time"].endswith("Z")
    assert datetime.fromisoformat(found["time"]).tzinfo is not None


def test_every_time_of_a_run_is_in_utc(store: str) -> None:
    incumbent("-s", store, "-q", "run", "job", "--slot", "s1", "--", "true")
    (run,) = answer("-s", store, "history", "job")
    assert all(run[field].endswith("Z") for field in ("due", "started", "ended"))
