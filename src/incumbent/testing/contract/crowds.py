"""Cases: much at once, and how many requests it costs."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from collections.abc import Callable

from incumbent.model import Granted, Queue, Queued, Released, Renewed, Stored
from incumbent.testing.contract.bench import Bench, needs

_JOIN = 60
_FIELDS = 300
_BATCH = 100
_CHUNK = 20
"""Grants that are asked for at once where that is not the subject."""
_TRIES = 3
"""A subscription, or a look by the store itself, may come between two requests once."""


class CrowdCases:
    """A crowd, many fields and large batches are served, and cost what the store declares."""

    @needs("queue")
    def test_sixty_claims_that_join_a_line_at_once_all_stand_in_it(self, bench: Bench) -> None:
        grant, queue = bench.granted(), Queue(bench.long, fair=True)
        requests = [bench.taking(holder=f"h{index}", queue=queue) for index in range(_JOIN)]
        joined = bench.at_once(*requests)
        # Asked again, a claim that the line has lost would join it again.
        assert sorted(it.place for it in joined) == list(range(_JOIN))
        again = [(bench.store.take(*it[1:], bench.until()), it) for it in requests]
        line = {it.place: request for it, request in again if isinstance(it, Queued)}
        assert sorted(line) == list(range(_JOIN))
        for place in range(3):
            assert bench.give(grant) == Released()
            following = bench.store.take(*line[place + 1][1:], bench.until())
            assert isinstance(following, Queued)
            assert following.reason == "turn"
            served = bench.store.take(*line[place][1:], bench.until())
            assert isinstance(served, Granted)
            grant = served

    @needs("fields")
    def test_three_hundred_fields_are_all_kept_beside_a_lease(self, bench: Bench) -> None:
        names = [f"field-{index}" for index in range(_FIELDS)]
        for name in names:
            assert isinstance(bench.put(name, name.encode()), Stored)
        grant = bench.granted()
        assert bench.renew(grant) == Renewed()
        record = bench.read()
        assert {name: it.value for name, it in record.fields.items()} == {
            name: name.encode() for name in names
        }
        assert [one.token for one in record.holdings] == [grant.token]
        assert bench.put(names[7], None) == Stored(0)
        assert bench.give(grant) == Released()
        assert sorted(bench.read().fields) == sorted({*names} - {names[7]})

    @needs("requests")
    def test_a_lease_costs_as_many_round_trips_as_declared(self, bench: Bench) -> None:
        declared = bench.world.engine.capabilities.round_trips
        names = [f"n{index}" for index in range(_TRIES)]
        for name in names:  # the first grant of a name may need a look more
            bench.give(bench.granted(name), name)
        grants: dict[str, Granted] = {}
        costs = {
            "take": _least(bench, lambda name: grants.update({name: bench.granted(name)})),
            "renew": _least(bench, lambda name: bench.renew(grants[name], name)),
            "give": _least(bench, lambda name: bench.give(grants[name], name)),
        }
        assert max(costs.values()) <= declared, costs

    @needs("requests")
    def test_a_hundred_renewals_go_together(self, bench: Bench) -> None:
        declared = bench.world.engine.capabilities.round_trips
        names = [f"n{index}" for index in range(_BATCH)]
        grants: list[Granted] = []
        for first in range(0, _BATCH, _CHUNK):
            grants += bench.at_once(*(bench.taking(name) for name in names[first:][:_CHUNK]))
        batch = [bench.renewal(grant, name) for grant, name in zip(grants, names, strict=True)]
        outcomes = []
        cost = _least(bench, lambda _: outcomes.append(bench.renew_all(batch)))
        assert outcomes == [[Renewed()] * _BATCH] * _TRIES
        assert cost <= declared


def _least(bench: Bench, request: Callable[[str], object]) -> int:
    """The round trips of a request on open connections; it gets another name each time."""
    costs = []
    for index in range(_TRIES):
        before = bench.world.requests()
        request(f"n{index}")
        costs.append(bench.world.requests() - before)
    return min(costs)
