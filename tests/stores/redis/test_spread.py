"""Renewals at one node of a cluster: packed once, one call a slot, each with its own answer."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from incumbent.errors import OutcomeUnknown
from incumbent.model import Gone, Key, Notice, Renewal, Renewed
from incumbent.net.pool import Mismatch
from incumbent.stores.redis.incarnation import ServerFacts
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.renew import NodePart, renew_part
from incumbent.stores.redis.resp import SCRIPTS, RequestBatch, as_eval
from incumbent.stores.redis.site import Moved, Packer
from tests.stores.redis.test_renewals_pure import calls_of, echo_of

REQUESTS = Packer(Naming(None), "here")
LOST = Gone("store_restarted")
SILENT = OutcomeUnknown("nothing was noted")


class Wire(ServerFacts):
    def __init__(self, epoch: str = "run", born: float = 0.0) -> None:
        super().__init__()
        self.epoch, self.born = epoch, born


def renewal(name: str, epoch: str = "n:1 run", meta: bytes | None = None) -> Renewal:
    return Renewal(Key("default", name), f"c-{name}", 5, 1.0, epoch, meta)


def a_part(indexes: int, *, by_asking: bool = False) -> NodePart:
    part = NodePart(("n", 1), by_asking=by_asking)
    part.indexes.extend(range(indexes))
    return part


def ends(program: Any, answers: list[Any]) -> None:
    with pytest.raises(StopIteration):
        program.send(answers)


class Asked:
    """Renewals that have been asked for; `outcomes` says what became of each."""

    def __init__(
        self,
        renewals: list[Renewal],
        part: NodePart | None = None,
        wire: Wire | None = None,
        packer: Packer = REQUESTS,
    ) -> None:
        self.outcomes: list[Any] = [SILENT] * len(renewals)
        part, wire = part or a_part(len(renewals)), wire or Wire()
        self.program = renew_part(packer, renewals, part, wire, self.outcomes)
        self.step: RequestBatch = next(self.program)
        self.calls = calls_of(self.step)
        self.echo = echo_of(self.calls[-1])

    def hear(self, *answers: Any) -> list[Any]:
        ends(self.program, list(answers))
        return self.outcomes


THREE = [renewal("a"), renewal("b"), renewal("c")]


def test_what_was_packed_is_sent_again_with_another_echo() -> None:
    part = a_part(3)
    first = Asked(THREE, part)
    kept = part.ready
    second = Asked(THREE, part)
    assert part.ready is kept
    assert len(first.calls) == first.step.answers == 3
    echoes = [{echo_of(call) for call in each.calls} for each in (first, second)]
    # One for all of a request, and never the same again.
    assert [len(each) for each in echoes] == [1, 1]
    assert echoes[0] != echoes[1]
    for one, other in zip(first.calls, second.calls, strict=True):
        assert [it for it in one if it != first.echo] == [it for it in other if it != second.echo]


def test_what_was_packed_for_another_incarnation_is_not_sent() -> None:
    part = a_part(2)
    mixed = [renewal("a"), renewal("b", "n:1 later")]
    Asked(mixed, part)
    (call,) = Asked(mixed, part, Wire("later")).calls
    assert call[3] == b"incumbent:{default/b}"


def test_all_were_renewed_only_if_every_answer_says_so() -> None:
    asked = Asked(THREE)
    assert asked.hear(*[[asked.echo, 1]] * 3) == [Renewed()] * 3

    asked = Asked(THREE)
    notice = [b"1 x", None]
    outcomes = asked.hear([asked.echo, 1], [asked.echo, 0], [asked.echo, notice])
    assert outcomes[:2] == [Renewed(), Gone()]
    assert isinstance(outcomes[2], Renewed)
    assert [type(each) for each in outcomes[2].notices] == [Notice]


def test_leases_of_one_slot_share_a_call_and_keep_their_places() -> None:
    class OneSlot(Naming):
        def keys_of(self, key: Key, shared: bool = False) -> tuple[bytes, ...]:
            main = b"{%b}" % key.name[:1].encode() + key.name.encode()
            return main, main + b":r"

    renewals = [renewal(name) for name in ("a1", "b", "a2")]
    asked = Asked(renewals, packer=Packer(OneSlot(None), "here"))
    assert [call[3::2][: int(call[2]) // 2] for call in asked.calls] == [
        [b"{a}a1", b"{a}a2"],
        [b"{b}b"],
    ]
    assert asked.hear([asked.echo, 1, 0], [asked.echo, 1]) == [Renewed(), Renewed(), Gone()]


def test_those_of_another_incarnation_are_lost_and_the_others_are_asked_for() -> None:
    asked = Asked([renewal("a", "n:1 before"), renewal("b")])
    assert asked.hear([asked.echo, 1]) == [LOST, Renewed()]
    outcomes: list[Any] = [SILENT]
    program = renew_part(REQUESTS, [renewal("a", "n:1 before")], a_part(1), Wire(), outcomes)
    with pytest.raises(StopIteration):
        next(program)
    assert outcomes == [LOST]


def test_a_call_that_fails_costs_the_others_nothing() -> None:
    asked = Asked(THREE)
    moved = hiredis.ReplyError("MOVED 5 10.0.0.9:7")
    first, error, last = asked.hear([asked.echo, 1], moved, [asked.echo, 1])
    assert first == last == Renewed()
    assert isinstance(error, Moved)
    assert error.address == "10.0.0.9:7"


@pytest.mark.parametrize("answer", [[b"c-a:another", 1], [b"?", 1, 1], b"1", None])
def test_an_answer_of_another_request_is_noticed(answer: Any) -> None:
    asked = Asked(THREE)
    with pytest.raises(Mismatch):
        asked.program.send([answer, [asked.echo, 1], [asked.echo, 1]])
    assert asked.outcomes[0] is SILENT


def test_calls_may_be_sent_again_with_the_script_if_it_was_forgotten() -> None:
    for by_asking in (False, True):
        asked = Asked(THREE, a_part(3, by_asking=by_asking))
        assert asked.step.answers == 3 * (2 if by_asking else 1)
        asking = [b"ASKING"] if by_asking else []
        assert [call[0] for call in asked.calls] == [*asking, b"EVALSHA"] * 3
        assert asked.step.repeats
        again = calls_of(asked.step._replace(payload=as_eval(asked.step.payload)))
        assert [call[0] for call in again] == [*asking, b"EVAL"] * 3
        assert {call[1] for call in again if call[1:]} == {SCRIPTS["renew"].text}
