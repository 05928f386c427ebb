"""One instance's loop, on a store in memory: its start, its sweep, its signs of life."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from incumbent import clock
from incumbent._drive.link import Link
from incumbent.cron.control import CONTROL, PRESENCE, UP, encode, presences
from incumbent.cron.instance import Instance
from incumbent.cron.judge import Slot
from incumbent.cron.ledger import Run, State, field_of, read_job, run_at
from incumbent.cron.ledger import encode as encode_run
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSpec
from incumbent.errors import ConfigError
from incumbent.links import link_for
from incumbent.model import Key, Record, Refused
from incumbent.stores.notices import PAUSE

SPEC = JobSpec(name="job", schedule=Every(86_400), command=("true",))
NAMES = (f"memory:instance{number}" for number in itertools.count())


class Launches:
    """A Launcher that notes what it is asked for, and gets nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def claim(self, spec: JobSpec, slot: Slot) -> Refused:
        self.asked.append(slot.name)
        return Refused("held", retry_after=60.0)

    def launch(self, spec: JobSpec, slot: Slot, grant: object) -> None:
        raise AssertionError

    def failed(self, spec: JobSpec, run: Run) -> None:
        pass


def quiet(event: str, /, **_: Any) -> None:
    """Hears nothing."""


@pytest.fixture
def link() -> Link:
    return link_for(next(NAMES))


@pytest.fixture
def instance(link: Link) -> Iterator[Instance]:
    made = Instance([SPEC], link, "n", "me", Launches(), quiet)
    made.turn()
    made.turn()
    yield made
    made.close()


def read(link: Link, name: str) -> Record:
    return link.store.read(Key("n", name), clock.now() + 1)


def put(link: Link, name: str, field: str, value: bytes) -> None:
    link.store.put(Key("n", name), field, value, None, clock.now() + 1)


def test_an_instance_says_what_its_jobs_are_and_that_it_lives(
    link: Link, instance: Instance
) -> None:
    assert read_job(read(link, "job").fields)["schedule"] == "every 1d"
    (present,) = presences(read(link, PRESENCE))
    assert (present.instance, present.jobs) == ("me", 1)


def test_who_leaves_is_no_longer_present(link: Link) -> None:
    made = Instance([SPEC], link, "n", "me", Launches(), quiet)
    made.turn()
    made.turn()
    made.close()
    assert presences(read(link, PRESENCE)) == []


def test_the_sweep_finds_a_run_that_nobody_witnessed_and_forgets_who_is_long_gone(
    link: Link, instance: Instance
) -> None:
    orphan = Run("manual/x", State.RUNNING, clock.wall(), "gone", 7, clock.wall())
    put(link, "job", field_of(orphan.slot), encode_run(orphan))
    put(link, PRESENCE, f"{UP}gone", encode(since=1.0, seen=clock.wall() - 100_000))
    instance._sweep_at = 0.0
    instance.turn()
    instance.wake()
    instance.turn()
    found = run_at(read(link, "job").fields, orphan.slot)
    assert found is not None
    assert (found.state, found.why) == (State.LOST, "gone vanished")
    assert [it.instance for it in presences(read(link, PRESENCE))] == ["me"]


def test_one_instance_of_the_fleet_sweeps_at_a_time(link: Link, instance: Instance) -> None:
    scans = []
    scan = link.store.scan

    def counted(namespace: str, prefix: str, until: float) -> Any:
        scans.append(prefix)
        return scan(namespace, prefix, until)

    link.store.scan = counted  # type: ignore[method-assign]
    other = Instance([SPEC], link, "n", "other", Launches(), quiet)
    other.turn()
    scans.clear()
    for each in (instance, other, instance, other):
        each._sweep_at = 0.0
        each.wake()
        each.turn()
    other.close()
    assert len(scans) == 1


def test_a_job_that_is_new_while_everything_is_paused_is_paused_too(link: Link) -> None:
    put(link, CONTROL, PAUSE, b'{"who": "ann", "all": true}')
    made = Instance([SPEC], link, "n", "me", Launches(), quiet)
    made.turn()
    made.turn()
    made.close()
    assert read(link, "job").fields[PAUSE].value == b'{"who": "ann", "all": true}'


def test_a_name_that_is_incumbents_own_is_refused(link: Link) -> None:
    spec = JobSpec(name="@cron", schedule=Every(60), command=("true",), source="f:3")
    with pytest.raises(ConfigError, match="f:3"):
        Instance([spec], link, "n", "me", Launches(), quiet)
