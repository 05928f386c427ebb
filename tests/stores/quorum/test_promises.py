"""What the promises of some nodes say of who holds the lease, where only its holder may write."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, ByClaim, Granted, Key, Refused, Released, Slot, Stored
from incumbent.stores.plan import run_blocking
from incumbent.stores.quorum import changes
from incumbent.stores.quorum import take as taking
from incumbent.stores.quorum.ballots import No, Silent

CLOCK = SimpleNamespace(highest_admitted=lambda _now: 100, propose=max)
THREE = SimpleNamespace(
    names=("a", "b", "c"),
    need=2,
    where="here",
    taken_back={},
    given_up={},
    clock=CLOCK,
    dialect=Mock(),
)
LOW = No("low", floor=9)
COMING = Silent(StoreUnavailable("it has not answered yet"), sent=False, coming=True)
GONE = Silent(StoreUnavailable("it is down"), sent=False)


def attempt() -> Any:
    panel = cast("Any", SimpleNamespace(quorum=THREE))
    return changes._ChangeAttempt(panel, Key("n", "job"), "u:f", ByClaim("me", 7), 1e12)


def promised(*holds: bool) -> dict[int, Any]:
    return {node: changes._Promised(5, None, it) for node, it in enumerate(holds)}


def test_who_is_held_by_two_of_three_holds_and_who_can_be_held_by_one_does_not() -> None:
    assert attempt()._is_held(promised(True, True)) is True
    assert attempt()._is_held(promised(False, False)) is False
    assert attempt()._is_held(promised(True, False, False)) is False


def test_of_one_node_that_says_so_nobody_knows_yet_and_a_larger_ballot_may_tell() -> None:
    it = attempt()
    for third, above in ((LOW, 9), (GONE, 9), (No("low", floor=101), 9)):
        it.promises = [*promised(True, False).values(), third]
        assert it._is_held(promised(True, False)) is None
        assert it.above == above


def test_while_two_nodes_disagree_a_third_that_is_still_being_connected_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lease that is given back or renewed meanwhile makes them agree, and so does the third."""
    turns = [promised(True, False), promised(True, False), promised(True, False, True)]
    it, rested = attempt(), list[float]()
    it.promises = [GONE]

    async def rest(seconds: float) -> None:
        rested.append(seconds)

    async def nothing(*_: object) -> bool:
        return True

    async def promises(_ballot: int) -> dict[int, Any]:
        return turns[len(rested)]

    monkeypatch.setattr(changes, "_ChangeAttempt", lambda *_: it)
    monkeypatch.setattr(changes, "found", nothing)
    monkeypatch.setattr(it, "_ask_for_promises", promises)
    monkeypatch.setattr(it, "_accept", nothing)
    it.panel.rest, it.panel.open = rest, nothing
    write = changes.put_field(it.panel, it.key, "f", b"mine", it.held, 1e12)
    assert isinstance(run_blocking(write), Stored)
    assert len(rested) == 2


@pytest.mark.parametrize(
    ("others", "waits"),
    [
        (("forgot", "forgot", "coming"), True),
        (("forgot", "forgot", "down"), False),
        (("forgot", "coming", "down"), True),
        (("coming", "down", "down"), False),
    ],
)
def test_a_node_is_waited_for_while_it_is_being_connected_and_can_make_the_difference(
    others: tuple[str, ...], waits: bool
) -> None:
    replies: dict[str, Any] = {"forgot": [[b"-", b"", 1]], "down": GONE, "coming": COMING}

    async def ask_all(*_: object) -> list[Any]:
        return [replies[it] for it in others]

    it = attempt()
    it.panel.ask_all = ask_all
    with nullcontext() if waits else pytest.raises(StoreUnavailable):
        assert run_blocking(it._ask_for_promises(7)) is None


@pytest.mark.parametrize(
    ("states", "holds", "guarded"),
    [((9, 3), False, False), ((9, 2), False, False), ((3, 2), False, True), ((9, 2), True, True)],
    ids=["others wrote after us", "without us", "we wrote last", "held"],
)
def test_what_others_wrote_last_is_settled_also_by_who_holds_the_lease_no_more(
    states: tuple[int, ...], holds: bool, guarded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its turns go on until its time is over, and nobody knows what became of its write."""
    it, guards = attempt(), list[ByClaim | None]()
    it.quorum = SimpleNamespace(need=2, names=THREE.names, clock=CLOCK)
    it.sent[3] = changes.Edit(b"ours")

    async def promises(_ballot: int) -> dict[int, Any]:
        return {node: changes._Promised(states[0], b"x", holds, states) for node in range(2)}

    async def accept(*arguments: Any) -> bool:
        guards.append(arguments[-1])
        return True

    monkeypatch.setattr(it, "_ask_for_promises", promises)
    monkeypatch.setattr(it, "_accept", accept)
    done = run_blocking(it.turn(lambda _entry, _ballot: changes.Edit(b"ours"), ends_earlier=False))
    assert done.edited == (3 in states or holds)
    assert guards == [ByClaim("me", 7) if guarded else None]


def test_a_node_whose_clock_is_behind_the_ballot_tells_its_time() -> None:
    assert attempt()._read(0, [[b"high", b"5"]]) == No("high", now=5)


@pytest.mark.parametrize("given_back", [True, False])
def test_a_used_slot_refuses_for_certain_only_if_the_lease_was_given_back(
    given_back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, object] = {
        "refused_slot": None,
        "run": Granted("me", 7, 10.0, ""),
        "use_slot": Refused("used"),
        "give": Released() if given_back else StoreUnavailable("it is down"),
    }

    def answering(name: str) -> Any:
        async def answer(*_: object) -> object:
            if isinstance(outcome := answers[name], StoreError):
                raise outcome
            return outcome

        return answer

    for name in ("refused_slot", "use_slot", "give"):
        monkeypatch.setattr(taking, name, answering(name))
    monkeypatch.setattr(taking._QuorumTake, "run", answering("run"))
    panel = cast("Any", SimpleNamespace(quorum=THREE))
    ask = Ask(10.0, "me", slot=Slot("2026", 60.0))
    taken = taking.take(panel, Key("n", "job"), "me", ask, 1e12)
    with nullcontext() if given_back else pytest.raises(OutcomeUnknown):
        assert run_blocking(taken) == Refused("used")
