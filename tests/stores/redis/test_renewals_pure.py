"""What renewals say to the server: one script call for many leases, packed once."""

from __future__ import annotations

import pytest

from incumbent.model import Batch, Gone, Key, Renewal, Renewed, RenewOutcome
from incumbent.net.pool import Mismatch
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.renew import renew_program
from incumbent.stores.redis.resp import RequestBatch, RespProgram
from incumbent.stores.redis.site import Packer

NAMING = Naming(None)


def renewal(at: int, ttl: float = 1.0, epoch: str = "now", meta: bytes | None = None) -> Renewal:
    return Renewal(Key("n", f"k{at}"), f"c{at}", at, ttl, epoch, meta)


def program(
    batch: Batch, epoch: str = "now", naming: Naming = NAMING
) -> RespProgram[list[RenewOutcome]]:
    return renew_program(Packer(naming, "here"), batch, epoch)


def calls_of(step: RequestBatch) -> list[list[bytes]]:
    """The arguments of each request of a payload."""
    found, rest = [], step.payload
    while rest:
        head, _, rest = rest.partition(b"\r\n")
        parts = []
        for _ in range(int(head[1:])):
            size, _, rest = rest.partition(b"\r\n")
            parts.append(rest[: int(size[1:])])
            rest = rest[int(size[1:]) + 2 :]
        found.append(parts)
    return found


def echo_of(call: list[bytes]) -> bytes:
    return call[3 + int(call[2])]


def outcome(running: RespProgram[list[RenewOutcome]], answers: list[object]) -> list[RenewOutcome]:
    with pytest.raises(StopIteration) as end:
        running.send(answers)
    found: list[RenewOutcome] = end.value.value
    return found


def test_a_batch_is_packed_once_and_only_its_echo_changes() -> None:
    batch = Batch(map(renewal, range(3)))
    (first,) = calls_of(next(program(batch)))
    kept = batch.prepared
    (second,) = calls_of(next(program(batch)))
    assert batch.prepared is kept
    assert echo_of(first) != echo_of(second)
    assert [part for part in first if part != echo_of(first)] == [
        part for part in second if part != echo_of(second)
    ]


def test_what_was_packed_for_another_incarnation_is_not_sent() -> None:
    batch = Batch([renewal(1), renewal(2, epoch="another")])
    next(program(batch))
    (call,) = calls_of(next(program(batch, "another")))
    assert call[3:5] == [b"incumbent:{n/k2}", b"incumbent:{n/k2}:r"]


def test_what_was_packed_for_another_naming_is_not_sent() -> None:
    batch = Batch([renewal(1)])
    next(program(batch))
    (call,) = calls_of(next(program(batch, naming=Naming("locks:{name}"))))
    assert call[3:5] == [b"locks:k1", b"incumbent:{locks:k1}:r"]


def test_leases_of_another_incarnation_are_gone_and_the_others_keep_their_places() -> None:
    batch = Batch([renewal(0, epoch="old"), renewal(1), renewal(2, epoch="old"), renewal(3)])
    running = program(batch)
    (call,) = calls_of(next(running))
    old = Gone("store_restarted")
    assert outcome(running, [[echo_of(call), 1, 0]]) == [old, Renewed(), old, Gone()]


def test_only_what_differs_is_said_of_each() -> None:
    batch = Batch([renewal(0), renewal(1, ttl=2.5), renewal(2, meta=b"new"), renewal(3)])
    (call,) = calls_of(next(program(batch)))
    keys = int(call[2])
    assert keys == 8
    heads = [b"incumbent1 c%d %d " % (at, at) for at in range(4)]
    special = [b"2", b"2500", b"-", b"3", b"1000", b"=new"]
    assert call[4 + keys :] == [b"1000", *heads, *special]


def test_a_large_batch_goes_in_bounded_calls_that_leave_together() -> None:
    batch = Batch(map(renewal, range(1200)))
    running = program(batch)
    first, second, third = calls = calls_of(next(running))
    assert [int(call[2]) // 2 for call in calls] == [500, 500, 200]
    said = [[echo_of(first), *[1] * 500], [echo_of(second), *[1] * 500]]
    said.append([echo_of(third), *[1] * 199, 0])
    assert outcome(running, list(said)) == [Renewed()] * 1199 + [Gone()]


def test_answers_that_are_exchanged_prove_nothing() -> None:
    batch = Batch(map(renewal, range(1500)))
    running = program(batch)
    each = [[echo_of(call), *[1] * 500] for call in calls_of(next(running))]
    with pytest.raises(Mismatch):
        running.send([each[0], each[2], each[1]])
