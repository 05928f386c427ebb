"""Other electors beside ours on one Lease: never do two act at once.

Each candidate is a process of its own and appends to one file while it leads, so that the kernel
keeps the order and this file judges it: a term that another has followed must not act again.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import tiers
from tests.support.kubernetes import ApiServer
from tests.support.kubernetes.elector import Access, GoElector
from tests.support.servers import ROOT
from tests.support.waiting import eventually, written

# Whoever checks that it leads may be held up before it acts, by less than `grace` or what is left
# after the deadline. The official election counts with its own duration: never less than our ttl.
TIMES: dict[str, dict[str, Any]] = {
    "ours": {"ttl": 6.0, "grace": 3.0},
    "go": {"duration": 8, "renew_deadline": 4.0, "retry_period": 0.25},
    "python": {"lease_duration": 8, "renew_deadline": 4, "retry_period": 1},
}


@dataclass
class Fleet:
    """Candidates for one Lease, and what they did."""

    api: ApiServer
    folder: Path
    ends: ExitStack
    namespace: str = field(default_factory=lambda: f"of-{secrets.token_hex(6)}")

    def __post_init__(self) -> None:
        self.api.create_namespace(self.namespace)
        self.acts = self.folder / "acts"

    @property
    def access(self) -> Access:
        return Access(self.api.host, self.api.port, self.api.token, self.namespace, "job")

    def add(
        self, kind: str, *, acts: int = 0, stop_after: int = 0, pause: float = 0.0
    ) -> subprocess.Popen[bytes]:
        settings = {"access": asdict(self.access), "times": TIMES[kind], "acts": acts}
        settings |= {"stop_after": stop_after, "pause": pause}
        settings["kubeconfig"] = str(self.api.kubeconfig(self.folder / "config"))
        command = [sys.executable, "-m", "tests.stores.kubernetes.actors", kind]
        command += [str(self.acts), json.dumps(settings)]
        process = subprocess.Popen(command, cwd=ROOT)
        self.ends.callback(_end, process)
        return process

    def terms(self, kind: str = "") -> list[str]:
        """In their order, each once for each time that it began or came back."""
        lines = written(self.acts).splitlines()
        found = [line for at, line in enumerate(lines) if not at or lines[at - 1] != line]
        return [term for term in found if term.startswith(kind)]

    def judge(self) -> None:
        """Raises AssertionError if a term came back, which another had followed."""
        terms = self.terms()
        assert len(terms) == len({*terms}), terms


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def fleet(api_server: ApiServer, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as ends:
        yield Fleet(api_server, tmp_path, ends)
        api_server.reset()


def test_two_of_ours_and_two_in_go_take_turns_and_never_act_at_once(fleet: Fleet) -> None:
    for kind in ("ours", "go", "ours", "go"):
        # Longer than the others poll: whoever is woken by a watch would else always be first.
        fleet.add(kind, acts=5, pause=0.8)
    faults: list[Callable[[], None]] = [
        fleet.api.cut_watches,
        lambda: fleet.api.fail(503, 0.5),
        lambda: fleet.api.fail(429, 0.5, retry_after=1),
        lambda: fleet.api.lose_answers("update"),
    ]
    for turn, fault in enumerate(faults, 1):
        eventually(partial(_had, fleet, 2 * turn))
        fault()
    eventually(partial(_had, fleet, 2 * len(faults) + 2))
    fleet.judge()


def _had(fleet: Fleet, terms: int) -> bool:
    return all(len(fleet.terms(kind)) >= terms for kind in ("ours", "go"))


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize(
    ("first", "second"),
    [("ours", "go"), ("go", "ours"), ("ours", "python"), ("python", "ours")],
)
def test_after_a_killed_leader_one_of_another_kind_leads(
    fleet: Fleet, first: str, second: str
) -> None:
    leader = fleet.add(first)
    eventually(lambda: fleet.terms(first))
    fleet.add(second)
    eventually(lambda: len(written(fleet.acts).splitlines()) >= 30)
    leader.kill()
    eventually(lambda: fleet.terms(second))
    fleet.judge()


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize(("first", "second"), [("ours", "go"), ("go", "ours")])
def test_a_frozen_leader_finds_that_another_leads(fleet: Fleet, first: str, second: str) -> None:
    leader = fleet.add(first, stop_after=5, pause=600.0)
    eventually(lambda: fleet.terms(first))
    fleet.add(second)
    eventually(lambda: fleet.terms(second))
    before = len(written(fleet.acts).splitlines())
    os.kill(leader.pid, signal.SIGCONT)
    eventually(lambda: len(written(fleet.acts).splitlines()) >= before + 20)
    fleet.judge()


def test_what_a_controller_in_go_gave_back_is_ours_at_once_and_counts_as_its_lease(
    fleet: Fleet,
) -> None:
    elector = GoElector(fleet.access, "go", **TIMES["go"])
    assert elector.acquire()
    assert elector.leads
    assert elector.release()
    fleet.add("ours")
    eventually(lambda: fleet.terms("ours"))
    lease = fleet.api.lease(fleet.namespace, "job")
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 1
    assert lease["spec"]["leaseDurationSeconds"] == TIMES["ours"]["ttl"]
    assert not elector.try_once()


def test_two_in_go_exclude_each_other(fleet: Fleet) -> None:
    """They are what the others are measured by."""
    first, second = (GoElector(fleet.access, name, **TIMES["go"]) for name in ("a", "b"))
    assert first.try_once()
    assert not second.try_once()
    assert first.leads
    assert first.release()
    assert second.try_once()
    assert not first.try_once()
    assert not first.leads
