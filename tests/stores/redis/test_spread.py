"""Renewals at one node of a cluster: packed once, one call a slot, each with its own answer."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from incumbent.model import Gone, Key, Notice, Renewal, Renewed
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.errors import Mismatch, Moved
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.resp import SCRIPTS, Step
from incumbent.stores.redis.spread import Part, renew_part
from tests.stores.redis.test_renewals_pure import calls_of, echo_of

DIALECT = Commands(Naming(None), "here")
LOST = Gone("store_restarted")
Outcomes = list[tuple[int, Any]] | None


class Wire:
    def __init__(self, epoch: str = "run", born: float = 0.0) -> None:
        self.epoch, self.born = epoch, born


def renewal(name: str, epoch: str = "n:1 run", meta: bytes | None = None) -> Renewal:
    return Renewal(Key("default", name), f"c-{name}", 5, 1.0, epoch, meta)


def a_part(places: int, *, by_asking: bool = False) -> Part:
    part = Part(("n", 1), by_asking=by_asking)
    part.places.extend(range(places))
    return part


def ends_with(program: Any, answers: list[Any]) -> Outcomes:
    with pytest.raises(StopIteration) as end:
        program.send(answers)
    found: Outcomes = end.value.value
    return found


def ask(
    renewals: list[Renewal], part: Part | None = None, wire: Wire | None = None
) -> tuple[Any, Step]:
    program = renew_part(DIALECT, renewals, part or a_part(len(renewals)), wire or Wire())
    return program, next(program)


THREE = [renewal("a"), renewal("b"), renewal("c")]


def test_what_was_packed_is_sent_again_with_another_echo() -> None:
    part = a_part(3)
    _, first = ask(THREE, part)
    kept = part.ready
    _, second = ask(THREE, part)
    assert part.ready is kept
    calls = calls_of(first), calls_of(second)
    assert len(calls[0]) == first.answers == 3
    echoes = [{echo_of(call) for call in each} for each in calls]
    # One for all of a request, and never the same again.
    assert [len(each) for each in echoes] == [1, 1]
    assert echoes[0] != echoes[1]
    for one, other in zip(*calls, strict=True):
        assert [it for it in one if it != echo_of(one)] == [
            it for it in other if it != echo_of(other)
        ]


def test_what_was_packed_for_another_incarnation_is_not_sent() -> None:
    part = a_part(2)
    mixed = [renewal("a"), renewal("b", "n:1 later")]
    ask(mixed, part)
    _, step = ask(mixed, part, Wire("later"))
    (call,) = calls_of(step)
    assert call[3] == b"incumbent:{default/b}"


def test_all_were_renewed_only_if_every_answer_says_so() -> None:
    program, step = ask(THREE)
    (echo, *_) = [echo_of(call) for call in calls_of(step)]
    assert ends_with(program, [[echo, 1]] * 3) is None

    program, step = ask(THREE)
    (echo, *_) = [echo_of(call) for call in calls_of(step)]
    notice = [b"1 x", None]
    said = ends_with(program, [[echo, 1], [echo, 0], [echo, notice]])
    assert said is not None
    assert said[:2] == [(0, Renewed()), (1, Gone())]
    assert isinstance(said[2][1], Renewed)
    assert [type(each) for each in said[2][1].notices] == [Notice]


def test_leases_of_one_slot_share_a_call_and_keep_their_places() -> None:
    class OneSlot(Naming):
        def keys_of(self, key: Key) -> tuple[bytes, bytes]:
            main = b"{%b}" % key.name[:1].encode() + key.name.encode()
            return main, main + b":r"

    dialect = Commands(OneSlot(None), "here")
    renewals = [renewal(name) for name in ("a1", "b", "a2")]
    program = renew_part(dialect, renewals, a_part(3), Wire())
    calls = calls_of(next(program))
    assert [call[3::2][: int(call[2]) // 2] for call in calls] == [[b"{a}a1", b"{a}a2"], [b"{b}b"]]
    echo = echo_of(calls[0])
    assert ends_with(program, [[echo, 1, 0], [echo, 1]]) == [
        (0, Renewed()),
        (2, Gone()),
        (1, Renewed()),
    ]


def test_those_of_another_incarnation_are_lost_and_the_others_are_asked_for() -> None:
    mixed = [renewal("a", "n:1 before"), renewal("b")]
    program, step = ask(mixed)
    (call,) = calls_of(step)
    assert ends_with(program, [[echo_of(call), 1]]) == [(0, LOST), (1, Renewed())]
    with pytest.raises(StopIteration) as end:
        ask([renewal("a", "n:1 before")])
    assert end.value.value == [(0, LOST)]


def test_a_call_that_fails_costs_the_others_nothing() -> None:
    program, step = ask(THREE)
    echo = echo_of(calls_of(step)[0])
    moved = hiredis.ReplyError("MOVED 5 10.0.0.9:7")
    said = ends_with(program, [[echo, 1], moved, [echo, 1]])
    assert said is not None
    assert [said[0], said[2]] == [(0, Renewed()), (2, Renewed())]
    at, error = said[1]
    assert at == 1
    assert isinstance(error, Moved)
    assert error.address == "10.0.0.9:7"


@pytest.mark.parametrize("answer", [[b"c-a:another", 1], [b"?", 1, 1], b"1", None])
def test_an_answer_of_another_request_is_noticed(answer: Any) -> None:
    program, step = ask(THREE)
    echo = echo_of(calls_of(step)[0])
    with pytest.raises(Mismatch):
        program.send([answer, [echo, 1], [echo, 1]])


def test_forgotten_scripts_are_sent_along_for_those_alone() -> None:
    for by_asking in (False, True):
        each = 2 if by_asking else 1
        program, step = ask(THREE, a_part(3, by_asking=by_asking))
        assert step.answers == 3 * each
        calls = calls_of(step)
        expected = [b"ASKING", b"EVALSHA"] if by_asking else [b"EVALSHA"]
        assert [call[0] for call in calls] == expected * 3
        echo = echo_of(calls[-1])
        forgotten = hiredis.ReplyError("NOSCRIPT No matching script")
        ok = [b"OK"] if by_asking else []
        again = program.send([*ok, [echo, 1], *ok, forgotten, *ok, [echo, 1]])
        assert again.answers == each
        *asking, call = calls_of(again)
        assert asking == [[b"ASKING"]] * by_asking
        assert call[:2] == [b"EVAL", SCRIPTS["renew"].text]
        assert call[3] == b"incumbent:{default/b}"
        assert ends_with(program, [*ok, [echo, 1]]) is None
