"""Mutations of the store in Kubernetes."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutation import Mutation, in_area

_k = in_area("dialects")

_OBJECTS = "stores/kubernetes/objects.py"
_KNOWN = "stores/kubernetes/known.py"
_EXCHANGE = "stores/kubernetes/exchange.py"
_IN = "tests/stores/kubernetes/"


def _object(name: str) -> str:
    return f"{_IN}test_objects.py::{name}"


def _bad(name: str) -> str:
    return f"{_IN}test_bad_input.py::{name}"


MUTATIONS: Final[tuple[Mutation, ...]] = (
    _k(
        "kubernetes: a lease ends by a clock that runs faster than the holder's",
        _OBJECTS,
        "_SLOW: Final = 0.99",
        "_SLOW: Final = 1.01",
        _object("test_whoever_looks_may_have_a_clock_that_runs_faster"),
    ),
    _k(
        "kubernetes: another elector that was edited in is believed without an end",
        _OBJECTS,
        "return min(max(believed, 1_000_000), _BELIEVED)",
        "return max(believed, 1_000_000)",
        _object("test_another_elector_is_believed_for_a_day_at_most"),
    ),
    _k(
        "kubernetes: whoever edits the holder frees the lease under it",
        _OBJECTS,
        "    if transitions <= sight.wrote[3]:",
        "    if transitions < 0:",
        _object("test_an_edited_lease_is_neither_renewed_nor_free"),
    ),
    _k(
        "kubernetes: an edited lease is renewed",
        _OBJECTS,
        'it._replace(claim=f"edited {it.claim}", permits=None)',
        "it._replace(permits=None)",
        _object("test_an_edited_lease_is_neither_renewed_nor_free"),
    ),
    _k(
        "kubernetes: the lease of a controller is taken",
        _OBJECTS,
        '    elif meta.get("ownerReferences"):',
        '    elif meta.get("ownersReferences"):',
        _object("test_what_is_strange_is_granted_to_nobody"),
    ),
    _k(
        "kubernetes: a slot ends while the clock of another API server has not reached its end",
        _OBJECTS,
        "left = max(0, until + SKEW - wall)",
        "left = max(0, until - SKEW - wall)",
        _object("test_a_slot_ends_by_the_servers_clock_and_the_most_that_such_clocks_differ"),
    ),
    _k(
        "kubernetes: a removed object's tokens begin where they began before",
        _KNOWN,
        "floor = marker.floor if sight else max(marker.floor, wall + AHEAD)",
        "floor = marker.floor",
        _bad("test_a_deleted_lease_is_free_and_its_holder_notices"),
    ),
    _k(
        "kubernetes: nobody notices that etcd went back",
        _KNOWN,
        "        if revision < floor <= self.newest:",
        "        if revision < 0:",
        _bad("test_an_older_etcd_grants_nothing_for_a_while_and_holders_notice"),
    ),
    _k(
        "kubernetes: an object is made in a namespace that is another one",
        _EXCHANGE,
        "        if self._probed or (before and now and before.id == now.id):",
        "        if True:",
        _bad("test_a_namespace_made_anew_grants_nothing_for_a_while_and_holders_notice"),
    ),
)
