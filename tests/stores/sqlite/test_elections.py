"""What elections leave in the file: it outlives what it must, and a file of release 1.0 serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent.model import Ask, Parting, Refused, Released
from tests.stores.sqlite.test_store import ASK, KEY, Machine, soon

DAY = 86_400.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "leases.db")
    yield machine
    machine.store.close()


def reserve(machine: Machine, holder: str, seconds: float) -> None:
    granted, until = machine.grant(), soon()
    outcome = machine.store.give(
        KEY,
        granted.claim,
        granted.token,
        until,
        parting=Parting(closed_for=seconds, reserve_for=holder),
    )
    assert outcome == Released()


def reason(machine: Machine, holder: str) -> str:
    outcome = machine.take(ask=Ask(10.0, holder))
    assert isinstance(outcome, Refused)
    return outcome.reason


def stand(machine: Machine, holder: str, seconds: float) -> None:
    assert isinstance(machine.take(ask=Ask(10.0, holder, candidacy=seconds)), Refused)


def standing(machine: Machine) -> list[str]:
    return [it.holder for it in machine.store.read(KEY, soon()).candidates]


def test_a_pause_outlives_sweeps_and_reboots(machine: Machine) -> None:
    machine.store.put(KEY, "pause", b"{}", None, soon())
    for _ in range(3):
        machine.sleep(400 * DAY)
        machine.store.close()
        assert reason(machine, "bob") == "paused"
        machine.reboot()
        assert reason(machine, "bob") == "paused"


def test_a_reservation_outlives_a_reboot_and_ends(machine: Machine) -> None:
    reserve(machine, "bob", 100.0)
    machine.reboot(takes=40.0)
    assert reason(machine, "carol") == "reserved"
    machine.sleep(61.0)
    machine.grant(ask=Ask(10.0, "carol"))


def test_nobody_stands_by_after_a_reboot(machine: Machine) -> None:
    machine.grant(ask=Ask(10.0, "alice"))
    stand(machine, "bob", 1e6)
    machine.reboot()
    assert standing(machine) == []


def test_what_is_over_leaves_the_record_plain(machine: Machine) -> None:
    reserve(machine, "bob", 5.0)
    stand(machine, "carol", 5.0)
    machine.sleep(6.0)
    machine.grant()
    assert machine.sql("SELECT rest FROM lease") == [(b"",)]


def test_the_reservation_of_an_earlier_closing_admits_nobody(machine: Machine) -> None:
    reserve(machine, "bob", 5.0)
    machine.sleep(6.0)
    machine.give(machine.grant(ask=ASK), closed_for=60.0)
    assert reason(machine, "bob") == "closed"
    assert machine.store.read(KEY, soon()).reserved_for == ""
