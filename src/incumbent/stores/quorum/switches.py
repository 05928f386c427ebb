"""The switches beside a lease ("pause" and "resign"), kept by a majority.

A switch has the version of the ballot it was written with, the same on every node; the larger one
is the last word, also if it says that the switch was removed. A node that missed it is told when
that is seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from incumbent.clock import now as _now
from incumbent.errors import StoreUnavailable
from incumbent.model import Field, Guard, Key, PutOutcome, Stale, Stored
from incumbent.stores.notices import PAUSE, RESIGN
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.group import (
    Quorum,
    answered_by_most,
    no_majority,
    silent_of,
    strangers,
)
from incumbent.stores.quorum.panel import Heard, Panel
from incumbent.stores.redis.resp import Step

__all__ = ["Switch", "is_paused", "last_words", "put_switch", "switches_of", "words_of"]

_NAMES: Final = (PAUSE, RESIGN)


class Switch(NamedTuple):
    """One word about a switch; `value` None: it was removed."""

    version: int
    value: bytes | None


_NOTHING: Final = Switch(0, None)


async def put_switch(
    quorum: Quorum,
    panel: Panel,
    key: Key,
    switch: str,
    value: bytes | None,
    guard: Guard,
    until: float,
) -> PutOutcome:
    """See Store.put, for a switch: stored when a majority stored it."""
    if switch not in _NAMES:
        raise StoreUnavailable(
            f"a quorum keeps the switches {PAUSE!r} and {RESIGN!r} and no other fields, such as"
            f" {switch!r}: use redis://, etcd:// or postgresql:// for those",
            permanent=True,
        )
    version = quorum.clock.propose(_now(), await _last_version(quorum, panel, key, switch, until))
    request = quorum.dialect.put(key, switch, value, guard, version)
    heard = await panel.ask([Step(request, 1)] * len(quorum.names), until)
    _refuse_strangers(quorum, heard)
    said = [None if isinstance(it, Silent) else it[0] for it in heard]
    if said.count(1) >= quorum.need:
        return Stored(0 if value is None else version)
    if said.count(-1) + said.count(0) > len(said) - quorum.need:
        return Stale()
    mute = [
        silent_of(it, name) for it, name in zip(heard, quorum.names, strict=True) if _is_mute(it)
    ]
    raise no_majority(quorum, mute, perhaps=1 in said or any(it.sent for it in mute))


async def _last_version(quorum: Quorum, panel: Panel, key: Key, switch: str, until: float) -> int:
    heard = await panel.ask(
        [quorum.dialect.switches(key)] * len(quorum.names), until, answered_by_most
    )
    return last_words(_all_words(heard))[switch].version


def _is_mute(heard: Heard) -> bool:
    return isinstance(heard, Silent) or not isinstance(heard[0], int)


def _refuse_strangers(quorum: Quorum, heard: Sequence[Heard]) -> None:
    for node, it in enumerate(heard):
        if not isinstance(it, Silent) and isinstance(it[0], list):
            raise strangers(quorum, node)


async def is_paused(quorum: Quorum, panel: Panel, key: Key, until: float) -> bool:
    """Whether the last word about it is that the name is paused."""
    return (await switches_of(quorum, panel, key, until))[PAUSE].value is not None


async def switches_of(quorum: Quorum, panel: Panel, key: Key, until: float) -> Mapping[str, Switch]:
    """The last words, after which every node that answered knows them."""
    heard = await panel.ask([quorum.dialect.switches(key)] * len(quorum.names), until)
    words = _all_words(heard)
    last = last_words(words)
    for switch in _NAMES:
        word = last[switch]
        steps = [
            Step(quorum.dialect.put(key, switch, word.value, None, word.version), 1)
            if of is not None and of[switch].version < word.version
            else None
            for of in words
        ]
        if any(steps):
            await panel.ask(steps, until)
    return last


def _all_words(heard: Sequence[Heard]) -> list[dict[str, Switch] | None]:
    return [
        None if isinstance(it, Silent) or not isinstance(it[0], list) else _from_fields(it[0])
        for it in heard
    ]


def _from_fields(fields: Sequence[Any]) -> dict[str, Switch]:
    present, removed = fields[0::2], fields[1::2]
    return {
        switch: max(_word(present[at]), Switch(int(removed[at] or 0), None), key=_version)
        for at, switch in enumerate(_NAMES)
    }


def words_of(fields: Mapping[bytes, bytes]) -> dict[str, Switch]:
    """What one node says."""
    names = [b"%b:%b" % (kind, switch.encode()) for switch in _NAMES for kind in (b"f", b"d")]
    return _from_fields([fields.get(name) for name in names])


def _word(raw: bytes | None) -> Switch:
    if raw is None:
        return _NOTHING
    version, _, value = raw.partition(b" ")
    return Switch(int(version), value)


def _version(word: Switch) -> tuple[int, bool]:
    # Where the same version was written and removed, it was removed later.
    return word.version, word.value is None


def last_words(words: Sequence[Mapping[str, Switch] | None]) -> dict[str, Switch]:
    """Of all nodes' words, those of the largest version."""
    known = [it for it in words if it is not None]
    return {
        switch: max((it[switch] for it in known), key=_version, default=_NOTHING)
        for switch in _NAMES
    }


def fields_of(last: Mapping[str, Switch]) -> dict[str, Field]:
    """As a record shows them."""
    return {
        name: Field(word.value, word.version)
        for name, word in last.items()
        if word.value is not None
    }
