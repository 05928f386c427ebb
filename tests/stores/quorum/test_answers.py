"""What a quorum says is so: taken only if most servers say it; else not possible, naming each."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from incumbent import AcquireTimeout, AsyncLock, Lock, NotAcquired, Policy
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Key, Parting, Record, Refused, Released, Slot, TakeOutcome
from incumbent.stores.quorum import ballots, changes
from incumbent.stores.quorum.ballots import Answer, Split, Verdict
from incumbent.stores.quorum.connecting import ConnectedPanel
from incumbent.stores.quorum.dialect import MARKER
from incumbent.stores.quorum.links import SyncPanel
from incumbent.stores.redis.records import Naming
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.quorum.world import Member, Members, Party, party, soon, take_everywhere
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

ASK = Ask(10.0, "us")
TRUSTED = "restart_wait=0"
WITHIN = 15.0
FROZEN = 0.3
"""Seconds of a take that nobody answers: as long as a short lease gives it."""
STATES = ("free", "held", "held by a third", "dead", "too young")
SIDES = ("sync", "async")


@pytest.fixture(scope="module")
def three() -> Iterator[Members]:
    with Members(3) as members:
        members.found(members.url(TRUSTED))
        yield members


@pytest.fixture(autouse=True)
def healed(three: Members) -> Iterator[None]:
    yield
    for one in three.all:
        one.server.thaw()
        one.proxy.heal()
        born(one, "0")


def born(member: Member, when: str) -> None:
    """What its marker says of its birth: 0 for long ago."""
    program, members, _, longest = member.server.cli("GET", MARKER).split()
    member.server.cli("SET", MARKER, f"{program} {members} {when} {longest}")


def put_into(members: Members, states: tuple[str, ...], key: Key) -> None:
    """Each server into its state, as far as `key` goes."""
    main, kept = Naming(None).of(key).lease, dict[int, str]()
    for state, holder in (("held", "them"), ("held by a third", "a third")):
        if state in states:
            with party(members.url(TRUSTED)) as other:
                other.key = key
                take_everywhere(members.all, other, Ask(60.0, holder))
            values = [one.server.cli("GETDEL", main) for one in members.all]
            kept |= {at: it for at, it in enumerate(values) if states[at] == state}
    for at, (state, one) in enumerate(zip(states, members.all, strict=True)):
        if at in kept:
            one.server.cli("SET", main, kept[at], "PX", "60000")
        elif state == "too young":
            born(one, str(int((time.time() + 30) * 1e6)))
        elif state == "dead":
            one.begin("refusing")


def expected(states: tuple[str, ...]) -> type[TakeOutcome | StoreError]:
    count = Counter(states)
    if count["free"] >= 2:
        return Granted
    if count["held"] + count["held by a third"] >= 2:
        return Refused
    return StoreUnavailable


def take(one: Party, side: str, within: float = WITHIN) -> TakeOutcome | StoreError:
    try:
        if side == "sync":
            return one.store.take(one.key, one.claim, ASK, soon(within))
        return asyncio.run(_take(one, within))
    except StoreError as error:
        return error


async def _take(one: Party, within: float) -> TakeOutcome:
    store = one.engine.async_store()
    try:
        return await store.take(one.key, one.claim, ASK, soon(within))
    finally:
        await store.aclose()


@pytest.mark.left(tiers.SIDES, "*-sync", "free-*-async")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("states", [*combinations_with_replacement(STATES, 3)], ids="-".join)
def test_the_answer_is_what_most_servers_say(
    three: Members, states: tuple[str, ...], side: str
) -> None:
    with party(three.url(TRUSTED)) as one:
        put_into(three, states, one.key)

        def is_said() -> bool:
            # What a server that is connected late would say is missing: then it is asked again.
            outcome = take(one, side)
            if isinstance(outcome, StoreError):
                assert not outcome.permanent
                return expected(states) is StoreUnavailable and said_of(three, states, outcome)
            assert type(outcome) is expected(states), outcome
            if isinstance(outcome, Refused):
                assert outcome.holders[0].holder in ("them", "a third")
            return True

        eventually(is_said)


def said_of(three: Members, states: tuple[str, ...], outcome: StoreError) -> bool:
    """Whether each server is named, though not all are asked where most cannot be reached."""
    said = str(outcome)
    assert all(member.address in said for member in three.all), said
    if states.count("dead") >= 2:
        return said.count("cannot be reached") == states.count("dead")
    words = {"free": "would grant it", "dead": "cannot be reached", "too young": "restart_wait"}
    return all(words.get(state, "held by another for another") in said for state in states)


def test_the_rule_that_a_minority_holds_it_is_caught(
    three: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ballots.decide

    def decide(answers: list[Answer]) -> Verdict:
        verdict = right(answers)
        return Split(verdict.no, verdict.first, True) if isinstance(verdict, Split) else verdict

    monkeypatch.setattr("incumbent.stores.quorum.take.decide", decide)
    with pytest.raises(AssertionError):
        test_the_answer_is_what_most_servers_say(three, ("free", "held", "dead"), "sync")


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("frozen", [(1, 2), (0, 1, 2)])
def test_what_frozen_servers_were_asked_is_not_known(
    three: Members, side: str, frozen: tuple[int, ...]
) -> None:
    """The requests have left on connections that were there."""
    with party(three.url(TRUSTED)) as one:

        async def ask() -> None:
            store = one.engine.async_store()
            granted = await store.take(one.key, one.claim, ASK, soon())
            assert isinstance(granted, Granted)
            assert isinstance(await store.give(one.key, one.claim, None, soon()), Released)
            freeze()
            with pytest.raises(OutcomeUnknown):
                await store.take(one.key, secrets.token_hex(16), ASK, soon(FROZEN))
            await store.aclose()

        def freeze() -> None:
            for at in frozen:
                three.all[at].server.freeze()

        if side == "async":
            asyncio.run(ask())
            return
        one.give(one.take(ASK))
        freeze()
        assert type(take(one, "sync", FROZEN)) is OutcomeUnknown


def pause_everywhere(three: Members, one: Party) -> str:
    """Pause the lease on each server, also on one that is connected late; returns their key."""
    companion = Naming(None).of(one.key).record

    def is_paused() -> bool:
        one.store.put(one.key, "pause", b"{}", None, soon())
        return all(member.server.cli("EXISTS", companion) == "1" for member in three.all)

    eventually(is_paused)
    return companion


@pytest.mark.parametrize("side", SIDES)
def test_a_pause_that_one_server_knows_is_one(three: Members, side: str) -> None:
    """Another has missed it, and the third is dead: what is known of it is the last word."""
    with party(three.url(TRUSTED)) as one:
        companion = pause_everywhere(three, one)
        for at in (1, 2):
            three.all[at].server.cli("DEL", companion)
        three.all[2].begin("refusing")
        outcome = take(one, side)
        assert isinstance(outcome, Refused)
        assert outcome.reason == "paused"


def lost_what_is_beside(member: Member, key: Key) -> None:
    """It was blank a while ago, and has heard of no change of this name since."""
    born(member, "1")
    member.server.cli("DEL", Naming(None).of(key).record)


@pytest.mark.parametrize("side", SIDES)
def test_a_server_that_missed_a_pause_is_told_by_the_next_take(three: Members, side: str) -> None:
    with party(three.url(TRUSTED)) as one:
        companion = pause_everywhere(three, one)
        three.all[2].server.cli("DEL", companion)

        def is_told() -> bool:
            outcome = take(one, side)
            assert isinstance(outcome, Refused)
            assert outcome.reason == "paused"
            return three.all[2].server.cli("HGET", companion, "f:pause").endswith("{}")

        # A vote that came too late to be looked at tells nothing.
        eventually(is_told)


def read(one: Party, side: str) -> Record | StoreError:
    async def main() -> Record:
        store = one.engine.async_store()
        try:
            return await store.read(one.key, soon(WITHIN))
        finally:
            await store.aclose()

    try:
        return one.store.read(one.key, soon(WITHIN)) if side == "sync" else asyncio.run(main())
    except StoreError as error:
        return error


@pytest.mark.parametrize("side", SIDES)
def test_what_only_a_silent_server_may_know_is_not_read_as_never_said(
    three: Members, side: str
) -> None:
    """One missed the pause, one lost its data, and the third is down."""
    with party(three.url(TRUSTED)) as one:
        three.all[2].server.cli("DEL", pause_everywhere(three, one))
        lost_what_is_beside(three.all[1], one.key)
        three.all[0].begin("refusing")
        outcome = read(one, side)
        assert isinstance(outcome, StoreUnavailable), outcome
        assert "does not know what was kept" in str(outcome)
        three.all[0].end()

        def is_read() -> bool:
            outcome = read(one, side)
            return isinstance(outcome, Record) and "pause" in outcome.fields

        # Connections are made again.
        eventually(is_read)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("replaced", [1, 3])
def test_a_name_that_was_read_while_all_were_up_is_known_without_each_of_them(
    three: Members, replaced: int, side: str
) -> None:
    """Of a name that was never changed a server that was blank knows nothing by itself."""
    with party(three.url(TRUSTED)) as one, party(three.url(TRUSTED)) as other:
        for member in three.all[:replaced]:
            born(member, "1")
        # All three have to be there, and the last one is connected later than the others.
        eventually(lambda: isinstance(read(one, side), Record))
        three.all[2].begin("refusing")
        assert isinstance(read(one, side), Record)
        assert isinstance(read(other, side), StoreUnavailable)


def give_half(one: Party, granted: Granted, side: str, within: float) -> None:
    """Give back a lease whose slot cannot be; so nobody may take it for not done."""
    asked, parting = (one.key, one.claim, granted.token, soon(within)), Parting(slot="day")

    async def give() -> None:
        store = one.engine.async_store()
        try:
            await store.give(*asked, parting=parting)
        finally:
            await store.aclose()

    with pytest.raises(OutcomeUnknown, match="slot day is not: no majority"):
        one.store.give(*asked, parting=parting) if side == "sync" else asyncio.run(give())


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize("side", SIDES)
def test_a_lease_is_given_back_though_the_time_does_not_suffice_for_its_slot(
    three: Members, side: str
) -> None:
    """Whether the slot was used, only a server that is frozen could tell."""
    with party(three.url(TRUSTED)) as one:
        granted = one.take(replace(ASK, slot=Slot("day", 60.0)))
        lost_what_is_beside(three.all[1], one.key)
        three.all[2].server.freeze()
        for at in (0, 1):
            three.all[at].begin("slow")
        give_half(one, granted, side, within=10.0)
        main = Naming(None).of(one.key).lease
        assert [it.server.cli("GET", main) for it in three.all[:2]] == ["-1", "-1"]


@pytest.mark.parametrize("side", SIDES)
def test_a_lease_is_given_back_though_its_slot_has_cost_the_connections(
    three: Members, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn without time for its replies leaves connections that no later step may use."""

    async def cost_connections(panel: ConnectedPanel, *_: object, **__: object) -> None:
        if isinstance(panel, SyncPanel):
            panel.close()
        for connection in filter(None, panel.connections):
            connection.close()
        raise StoreUnavailable("no majority")

    with party(three.url(TRUSTED)) as one:
        granted = one.take(replace(ASK, slot=Slot("day", 60.0)))
        monkeypatch.setattr(changes, "change", cost_connections)
        give_half(one, granted, side, within=WITHIN)
        main = Naming(None).of(one.key).lease
        assert [it.server.cli("GET", main) for it in three.all].count("-1") >= 2


# -- as users meet it


def none_free(members: Members, name: str) -> None:
    put_into(members, ("held", "free", "dead"), Key("default", name))


@pytest.mark.left(tiers.LONG)
def test_waiting_for_what_no_majority_gives_ends_with_why(three: Members) -> None:
    name = secrets.token_hex(6)
    none_free(three, name)
    # A busy machine may take long to ask those that live, and the only try needs their answers.
    patient = Policy(60, request_timeout=10)
    waits: list[Callable[[float | None], object]] = [
        lambda timeout: Lock(name, store=three.url(TRUSTED), policy=patient).acquire(timeout),
        lambda timeout: asyncio.run(acquire(three, name, timeout, policy=patient)),
    ]
    for wait in waits:
        with pytest.raises(StoreUnavailable, match="would grant it"):
            wait(0)
        # The last try may have too little time for an answer: then nobody knows what it did.
        with pytest.raises(StoreError) as caught:
            wait(1.5)
        assert all(member.address in str(caught.value) for member in three.all)


def test_waiting_for_what_a_majority_holds_ends_with_who(three: Members) -> None:
    name = secrets.token_hex(6)
    put_into(three, ("held", "held", "dead"), Key("default", name))
    lock = Lock(name, store=three.url(TRUSTED), policy=Policy(60, request_timeout=10))
    with pytest.raises(NotAcquired) as caught:
        lock.acquire(timeout=0)
    assert caught.value.held_by == "them"
    with pytest.raises(AcquireTimeout):
        lock.acquire(timeout=1.5)


async def acquire(members: Members, name: str, timeout: float | None, *, policy: Policy) -> None:
    await AsyncLock(name, store=members.url(TRUSTED), policy=policy).acquire(timeout=timeout)


def test_the_commands_tell_a_lost_majority_from_one_that_has_it(three: Members) -> None:
    store, name = ("-s", three.url(TRUSTED)), secrets.token_hex(6)
    put_into(three, ("held", "held", "dead"), Key("default", name))
    assert incumbent(*store, "run", name, "--", "true").returncode == 75
    shown = incumbent(*store, "status", "--json", name)
    assert json.loads(shown.stdout)["result"]["holder"] == "them"
    three.all[1].begin("refusing")
    for command in (("run", name, "--", "true"), ("status", name), ("doctor",)):
        done = incumbent(*store, *command)
        assert done.returncode == 69, done
        said = done.stdout + done.stderr
        assert all(member.address in said for member in three.all), said


def test_a_name_that_nobody_can_tell_of_is_not_shown_as_free(three: Members) -> None:
    store, name = ("-s", three.url(TRUSTED)), secrets.token_hex(6)
    none_free(three, name)
    done = incumbent(*store, "status", name)
    assert done.returncode == 69
    assert "them" in done.stderr
    assert incumbent(*store, "wait", name, "--timeout", "0.2").returncode == 69
    listed = incumbent(*store, "status", "--json")
    states = {it["name"]: it["state"] for it in json.loads(listed.stdout)["result"]}
    assert states[name] == "cannot tell"


@pytest.mark.parametrize("side", SIDES)
def test_servers_that_answer_errors_say_nothing_of_a_name(three: Members, side: str) -> None:
    with party(three.url(TRUSTED)) as one:
        one.take(ASK)
        for at in (0, 1):
            three.all[at].server.cli("SET", Naming(None).of(one.key).record, "a foreign value")

        async def read() -> object:
            store = one.engine.async_store()
            try:
                return await store.read(one.key, soon())
            finally:
                await store.aclose()

        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            one.store.read(one.key, soon()) if side == "sync" else asyncio.run(read())


@pytest.mark.parametrize("side", SIDES)
def test_an_error_is_no_answer_that_makes_a_majority(three: Members, side: str) -> None:
    """One answers with an error and one late: the late one is waited for."""
    with party(three.url(TRUSTED)) as one:
        main = Naming(None).of(one.key).lease

        def hurt() -> None:
            three.all[0].server.cli("DEL", main)
            three.all[0].server.cli("HSET", main, "foreign", "value")
            three.all[2].begin("slow")

        async def give() -> object:
            store = one.engine.async_store()
            try:
                granted = await store.take(one.key, one.claim, ASK, soon())
                assert isinstance(granted, Granted)
                hurt()
                return await store.give(one.key, one.claim, granted.token, soon())
            finally:
                await store.aclose()

        if side == "async":
            assert asyncio.run(give()) == Released()
            return
        granted = one.take(ASK)
        hurt()
        assert one.give(granted) == Released()


def test_the_doctor_says_that_new_names_need_servers_that_forgot_nothing(three: Members) -> None:
    with party(three.url(TRUSTED)) as one:
        one.take(ASK)
        assert not any("blank" in what for _, what, _ in one.engine.diagnose(15.0, soon()))
        born(three.all[1], "1")
        level, what, todo = one.engine.diagnose(15.0, soon())[1]
        assert (level, what.partition(" ")[0]) == ("ok", "1")
        assert "2 of the other 2" in what
        born(three.all[2], "1")
        level, what, todo = one.engine.diagnose(15.0, soon())[1]
        assert (level, what.partition(" ")[0]) == ("warning", "2")
        assert "all 3" in what
        assert "status" in todo


def test_the_doctor_says_of_each_server_what_matters_in_a_quorum(three: Members) -> None:
    with party(three.url(TRUSTED)) as one:
        one.take(ASK)
        said = " ".join(what for _, what, _ in one.engine.diagnose(15.0, soon()))
        assert "replication is asynchronous" not in said
        assert "up for" not in said
        with RedisServer(["--replicaof", f"127.0.0.1 {three.all[0].server.port}"]):

            def warned() -> bool:
                found = one.engine.diagnose(15.0, soon())
                return any("it has replicas" in what for _, what, _ in found)

            eventually(warned)


def test_the_doctor_says_that_a_majority_is_too_new(three: Members) -> None:
    with party(three.url(TRUSTED)) as one:
        one.take(ASK)
        findings = one.engine.diagnose(15.0, soon())
        assert tuple(findings[0][1].split(", ")) == ("3 of 3 servers are sound", "2 are needed")
        for at in (0, 2):
            born(three.all[at], str(int((time.time() + 30) * 1e6)))
        (level, what, _), *each = one.engine.diagnose(15.0, soon())
        assert (level, "2 are too new" in what) == ("warning", True)
        assert len([it for it in each if "votes in" in it[1]]) == 2
