"""Sentinels and clusters: what is read, and what is decided from it, without a server."""

from __future__ import annotations

import asyncio
import threading
from binascii import crc_hqx
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, cast
from unittest.mock import AsyncMock

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent import clock
from incumbent.errors import ConfigError, StoreError, StoreUnavailable
from incumbent.model import Gone, Key, Renewal, Renewed, RenewOutcome
from incumbent.stores.plan import Plan, run_blocking
from incumbent.stores.redis import open_store, runner, sentinel
from incumbent.stores.redis.aio import AsyncRedisSide
from incumbent.stores.redis.cluster import KnownCluster, Router, Topology, marker_keys_of
from incumbent.stores.redis.incarnation import (
    Handshake,
    IncarnationMarker,
    ServerContext,
    ServerFacts,
    read_facts,
)
from incumbent.stores.redis.options import (
    RedisOptions,
    RedisTarget,
    parse_address,
    parse_redis_url,
    say_address,
)
from incumbent.stores.redis.records import SLOTS, Naming, slot_of
from incumbent.stores.redis.renew import NodePart, renew_part
from incumbent.stores.redis.resp import RequestBatch
from incumbent.stores.redis.sentinel import (
    Follow,
    Followed,
    Opinion,
    majority_of,
    newest_of,
    verdict,
)
from incumbent.stores.redis.site import Packer, RedisSite
from incumbent.stores.redis.sync import BlockingRedisSide, BlockingRunner
from incumbent.stores.redis.wire import Call, RedisSide
from incumbent.stores.url import parse_hosts
from tests.support.pace import lasted

SECRET = "pa55-never-shown"
OLD, NEW = ("10.0.0.1", 6379), ("10.0.0.2", 6379)
SILENT = StoreUnavailable("silent")
AGREED = [Opinion(5, NEW)] * 2


# -- URLs


def test_sentinels_are_listed_with_the_name_of_the_master() -> None:
    options = parse_redis_url(
        "redis+sentinel://me:pw@s1,s2:7000,[::1]:7001/main/3"
        "?sentinel_username=s&sentinel_password=t&wait_replicas=2:50ms"
    )
    assert options.hosts == (("s1", 26379), ("s2", 7000), ("::1", 7001))
    assert (options.service, options.target.db, options.target.password) == ("main", 3, "pw")
    assert [(it.host, it.port) for it in options.sentinels] == list(options.hosts)
    assert {(it.username, it.password, it.db) for it in options.sentinels} == {("s", "t", 0)}
    assert (options.wait_replicas, options.wait_timeout) == (2, 0.05)
    assert options.shown == "redis+sentinel://me:***@s1:26379,s2:7000,[::1]:7001/main/3"


@pytest.mark.parametrize(
    "scheme", ["redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster"]
)
def test_a_cluster_is_any_of_its_nodes(scheme: str) -> None:
    options = parse_redis_url(f"{scheme}://h1,h2:7000")
    assert options.hosts == (("h1", 6379), ("h2", 7000))
    assert bool(options.target.tls) == (scheme in ("rediss+cluster", "valkeys+cluster"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://s1,s2", "say which master"),
        ("redis+sentinel://s1/ma in", "say which master"),
        ("redis+sentinel://s1,s1/main", "each host once"),
        ("redis+sentinel://s1,/main", "write redis"),
        ("redis+sentinel://s1:99999/main", "write redis"),
        ("redis+sentinel:///main", "write redis"),
        ("redis+cluster://h1/1", "0 in a cluster"),
        ("redis+cluster://h1?sentinel_password=x", "is not an option"),
        ("redis://h1?wait_replicas=0", "1 to 99"),
        ("redis://h1?wait_replicas=x", "1 to 99"),
        ("redis://h1?wait_replicas=1:soon", "wait_replicas"),
        ("redis://h1?wait_replicas=1:0", "longer than nothing"),
        ("redis+cluster://h1?ca=/ca", "need the scheme rediss://"),
        ("redis://h1,h2", r"redis\+sentinel://"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_the_reason(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        f"redis+sentinel://:{SECRET}@s1,s2",
        f"redis+sentinel://:a/{SECRET}@s1/main",
        f"redis+cluster://:{SECRET}@h1,h1",
        f"redis+cluster://:a#{SECRET}@h1",
        f"redis+cluster://:[{SECRET}@h1",
    ],
)
def test_a_password_shows_in_no_complaint(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)


def test_passwords_show_nowhere() -> None:
    url = f"redis+sentinel://me:{SECRET}@s1/main?sentinel_password={SECRET}2"
    engine = open_store(url)
    assert SECRET not in repr((engine, engine.url, parse_redis_url(url)))


@given(
    st.lists(
        st.tuples(st.sampled_from(["h", "a.example", "::1"]), st.integers(1, 65535)),
        min_size=1,
        unique=True,
    )
)
def test_hosts_are_read_as_they_are_said(hosts: list[tuple[str, int]]) -> None:
    assert parse_hosts(",".join(map(say_address, hosts)), 1) == tuple(hosts)


def test_an_address_is_read_as_servers_say_it() -> None:
    assert parse_address("::1:6379") == ("::1", 6379)
    assert parse_address("h:1") == ("h", 1)


# -- sentinels


def test_the_newest_opinion_counts_once_a_majority_has_it() -> None:
    named: list[list[Opinion | StoreError]] = [[SILENT, *AGREED], [Opinion(4, OLD), *AGREED]]
    for answers in named:
        assert verdict(answers, 3, "here") == Opinion(5, NEW)
    early = Opinion(5, NEW)
    for alone in ([Opinion(4, OLD), early], [early, Opinion(4, OLD), Opinion(4, OLD)]):
        with pytest.raises(StoreUnavailable, match="1 of 3 sentinels say") as caught:
            verdict(alone, 3, "here")
        assert not caught.value.permanent


@pytest.mark.parametrize(("asked", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_fewer_than_a_majority_say_nothing(asked: int, needed: int) -> None:
    assert majority_of(asked) == needed
    said: list[Opinion | StoreError] = [Opinion(1, OLD)] * (needed - 1)
    with pytest.raises(StoreUnavailable, match=f"{needed - 1} of {asked}") as caught:
        verdict([*said, *[SILENT] * (asked - needed + 1)], asked, "here")
    assert not caught.value.permanent
    assert verdict([*said, Opinion(1, OLD)], asked, "here") == Opinion(1, OLD)


def test_a_majority_that_refuses_for_good_is_final() -> None:
    final = StoreUnavailable("wrong password", permanent=True)
    for answers, permanent in (([final, final], True), ([final, SILENT, SILENT], False)):
        with pytest.raises(StoreUnavailable) as caught:
            verdict(answers, 3, "here")
        assert caught.value.permanent == permanent


class SlowSide:
    """Sentinels whose answers come when they are let go."""

    def __init__(self) -> None:
        self.surveys: list[asyncio.Future[list[Opinion]]] = []

    async def survey(self, *_: object) -> list[Opinion]:
        answer: asyncio.Future[list[Opinion]] = asyncio.get_running_loop().create_future()
        self.surveys.append(answer)
        return await answer


def test_an_answer_that_comes_late_does_not_replace_a_newer_one() -> None:
    async def main() -> None:
        engine = open_store("redis://pattern")
        followed = Followed(engine._site, (engine._site,), "main")
        slow = SlowSide()
        side = cast("RedisSide", slow)
        first = asyncio.create_task(followed.ask(side, 0.0))
        await asyncio.sleep(0)
        second = asyncio.create_task(followed.ask(side, 0.0))
        await asyncio.sleep(0)
        slow.surveys[1].set_result([Opinion(2, NEW)])
        await second
        slow.surveys[0].set_result([Opinion(1, OLD)])
        await first
        assert followed.opinion == Opinion(2, NEW)
        assert engine._site.target.host == NEW[0]

    asyncio.run(main())


def test_two_threads_that_note_different_answers_at_once_prove_neither_server_falsely() -> None:
    async def main() -> None:
        site, slow = open_store("redis://pattern")._site, SlowSide()
        side = cast("RedisSide", slow)
        between: list[Callable[[], None]] = []

        class Interrupted(Followed):
            def __setattr__(self, name: str, value: object) -> None:
                if name == "opinion" and between:
                    between.pop()()
                super().__setattr__(name, value)

        followed = Interrupted(site, (site,), "main")
        first, second = followed.ask(side, inf), followed.ask(side, inf)
        first.send(None)
        second.send(None)
        slow.surveys[0].set_result([Opinion(1, OLD)])
        slow.surveys[1].set_result([Opinion(2, NEW)])

        def note_the_older_one() -> None:
            with pytest.raises(StopIteration):
                first.send(None)

        between.append(note_the_older_one)
        with pytest.raises(StopIteration):
            second.send(None)
        assert site.target.host == OLD[0]
        assert not site.means(site.target)

        third = followed.ask(side, inf)
        third.send(None)
        slow.surveys[2].set_result([Opinion(2, NEW)])
        with pytest.raises(StopIteration):
            third.send(None)
        assert site.target.host == NEW[0]
        assert site.means(site.target)

    asyncio.run(main())


def test_a_connection_is_not_older_because_another_thread_saw_an_older_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wire:
        closed = False

        def __init__(self) -> None:
            self.server = ServerFacts()

    class Site(RedisSite):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "sighted" and value != ("old", 1.0):
                self.sighted = ("old", 1.0)

    async def shake_hands(*_: object) -> Handshake:
        return Handshake(IncarnationMarker("new", 1, 1, "run", "hist"), "key", "hist", 1.7e9, 0.5)

    monkeypatch.setattr(runner, "run_program", shake_hands)
    site, wire = Site(RedisTarget(), "here"), Wire()
    store = BlockingRunner(site, Packer(Naming(None), "here"))
    monkeypatch.setattr(store, "dial", AsyncMock(return_value=wire))
    began = clock.now()
    run_blocking(store._connect(began + 5.0))
    assert wire.server.born >= began - 0.5


def test_an_answer_proves_from_the_question_on_and_for_one_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(sentinel, "_now", lambda: now)

    async def main() -> None:
        nonlocal now
        site = open_store("redis://pattern")._site
        followed, slow = Followed(site, (site,), "main"), SlowSide()
        asked = asyncio.create_task(followed.ask(cast("RedisSide", slow), inf))
        await asyncio.sleep(0)
        before = site.target
        now += sentinel.PROVES - 0.5
        slow.surveys[0].set_result([Opinion(1, NEW)])
        await asked
        assert site.means(site.target)
        assert not site.means(before)
        now += 0.5
        assert not site.means(site.target)

    asyncio.run(main())


# -- promotion


def test_behind_sentinels_a_promotion_settles_for_longer_than_an_answer_proves() -> None:
    engine = open_store("redis+sentinel://s1,s2,s3/main")
    operations = engine.store().operations
    assert isinstance(operations, Follow)
    # The slack is for clocks that run unevenly.
    assert operations._followed.site.old_master_for > sentinel.PROVES


def test_a_master_that_was_promoted_a_moment_ago_has_yet_to_settle() -> None:
    wire, plain = ServerFacts(), IncarnationMarker("abc", 1, 1, "run", "hist")
    for mark, born in ((plain._replace(id="abc:promoted"), 62.0), (plain, 59.0)):
        wire.learn_from(Handshake(mark, "key", "hist", 1.7e9, 1.0), 60.0, 3.0)
        assert wire.born == born


def test_a_master_that_was_a_replica_is_another_incarnation() -> None:
    plain = b"run_id:abc\r\nmaster_replid:111\r\nmaster_replid2:000000\r\n"
    promoted = plain.replace(b"master_replid2:000000", b"master_replid2:111").replace(
        b":111\r", b":222\r", 1
    )
    assert read_facts(plain).promoted == ""
    assert read_facts(promoted).promoted == "222"


# -- clusters


@pytest.mark.parametrize(
    ("name", "slot"),
    [("123456789", 12739), ("foo", 12182), ("{foo}.bar", 12182), ("a{foo}{bar}", 12182)],
)
def test_slots_are_those_of_the_server(name: str, slot: int) -> None:
    assert slot_of(name) == slot


def test_with_nothing_in_the_braces_the_whole_name_counts() -> None:
    assert slot_of("{}x") == crc_hqx(b"{}x", 0) % SLOTS
    assert slot_of("{x") == crc_hqx(b"{x", 0) % SLOTS


def topology() -> Topology:
    return Topology(1, [0, 8192], [8000, 16383], [OLD, NEW])


def test_a_slot_is_where_it_was_last_said_to_be() -> None:
    known = topology()
    assert (known.master_of(0), known.master_of(8000), known.master_of(16383)) == (OLD, OLD, NEW)
    assert known.master_of(8001) is None
    assert known.unserved() == 191
    known.moved[8001] = NEW
    assert known.master_of(8001) == NEW


@pytest.mark.parametrize("node", [OLD, NEW])
def test_the_copies_of_a_nodes_marker_lie_in_slots_of_its_own(node: tuple[str, int]) -> None:
    keys = marker_keys_of(topology(), node)
    assert len({slot_of(key) for key in keys}) == 3
    assert all(topology().master_of(slot_of(key)) == node for key in keys)


def test_the_markers_of_two_nodes_have_different_names() -> None:
    # A slot that moves takes the copy along.
    assert not set(marker_keys_of(topology(), OLD)) & set(marker_keys_of(topology(), NEW))


def test_a_node_without_slots_has_no_marker() -> None:
    assert marker_keys_of(topology(), ("10.0.0.3", 6379)) == ()


class Disturbed(KnownCluster):
    """A cluster whose other threads meet NEW at the instant before each change of it is seen."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "topology" and hasattr(self, "sites"):
            for address, site in self.sites.items():
                assert site.marker_keys == marker_keys_of(topology(), address)
            self.site_of(NEW)
        super().__setattr__(name, value)


def test_a_node_that_another_thread_meets_while_an_answer_is_learnt_is_no_matter() -> None:
    cluster = Disturbed(RedisSite(RedisTarget(), "here"), (OLD, NEW))
    cluster.site_of(OLD)
    cluster._learn([topology()], [])
    assert len(cluster.sites) == 2
    for address, site in cluster.sites.items():
        assert site.marker_keys == marker_keys_of(topology(), address)


def test_a_node_has_its_markers_keys_by_the_topology_of_whoever_asks_for_it() -> None:
    cluster = KnownCluster(RedisSite(RedisTarget(), "here"), (OLD, NEW))
    cluster.site_of(OLD)
    cluster.topology = topology()
    assert cluster.site_of(OLD).marker_keys == marker_keys_of(topology(), OLD)


class Sent:
    """The connections to a node that sends every renewal to the other one, so many times."""

    def __init__(self, router: SentAbout, other: tuple[str, int]) -> None:
        self._router = router
        self._other = say_address(other)

    async def run(self, plan: Plan[ServerContext, None], until: float) -> None:
        wire = Wire("epoch", 0.0)
        server = ServerContext(RedisSite(RedisTarget(), "here"), Packer(Naming(None), "here"), wire)
        program = plan.start(server, until)
        echo = echo_of(next(program))
        self._router.redirections -= 1
        answer: object = [echo, 1]
        if self._router.redirections >= 0:
            answer = hiredis.ReplyError(f"MOVED 1 {self._other}")
        with pytest.raises(StopIteration):
            program.send([answer])


class SentAbout:
    """A side of a cluster whose nodes have not agreed yet who has a slot."""

    def __init__(self, redirections: int) -> None:
        self.redirections = redirections
        self.paused = 0.0

    def runner(self, site: RedisSite, _: Packer) -> Sent:
        return Sent(self, NEW if say_address(OLD) in site.where else OLD)

    async def gather(self, calls: Sequence[Callable[[float], Any]], until: float) -> list[Any]:
        return [await call(until) for call in calls]

    async def update(self, *_: object) -> None:
        """They have been asked a moment ago."""

    async def pause(self, seconds: float) -> None:
        self.paused += seconds


@pytest.mark.parametrize("redirections", [0, 2, 5, 12])
def test_a_renewal_follows_its_slot_for_as_long_as_there_is_time(redirections: int) -> None:
    side = SentAbout(redirections)
    cluster = KnownCluster(RedisSite(RedisTarget(), "here"), (OLD, NEW))
    cluster.topology, cluster.must_ask = topology(), False
    router = Router(cast("RedisSide", side), cluster, RedisOptions("redis+cluster", RedisTarget()))
    renewal = Renewal(Key("default", "job"), "c", 1, 1.0, "epoch")
    assert run_blocking(router.renew([renewal], clock.now() + 5)) == [Renewed()]
    # Not in a busy loop.
    assert (side.paused > 0) == (redirections >= 5)


class Wire(ServerFacts):
    def __init__(self, epoch: str, born: float) -> None:
        super().__init__()
        self.epoch, self.born = epoch, born


def spread(epoch_of_the_lease: str, wire: Wire, token: int) -> RenewOutcome | StoreError:
    """The outcome of one renewal that the node would grant."""
    renewal = Renewal(Key("default", "job"), "c", token, 1.0, epoch_of_the_lease)
    packer = Packer(Naming(None), "here")
    part = NodePart(("n", 1), by_asking=False)
    part.indexes.append(0)
    outcomes: list[RenewOutcome | StoreError] = [StoreError("nothing was noted")]
    program = renew_part(packer, [renewal], part, wire, outcomes)
    with pytest.raises(StopIteration):
        program.send([[echo_of(next(program)), 1]])
    return outcomes[0]


def echo_of(step: RequestBatch) -> bytes:
    said = step.payload.split(b"\r\n")
    return next(part for part in said if part.startswith(b"c:"))


def test_a_lease_is_renewed_where_it_was_granted_or_came_with_its_slot() -> None:
    from incumbent import clock

    now, token = clock.now(), int(clock.wall() * 1e6)
    assert spread("n:1 run", Wire("run", now), token) == Renewed()
    assert spread("m:1 old", Wire("run", now), token) == Renewed()
    # It was a master long before the lease was granted.
    assert spread("m:1 old", Wire("run:promoted", now - 200), token) == Renewed()


def test_a_lease_is_gone_with_the_incarnation_that_granted_it() -> None:
    from incumbent import clock

    now, token = clock.now(), int(clock.wall() * 1e6)
    gone = Gone("store_restarted")
    assert spread("n:1 before", Wire("run", now), token) == gone
    assert spread("m:1 old", Wire("run:promoted", now), token) == gone


# -- many at once ---------------------------------------------------------------------------------


def test_what_interrupts_the_caller_is_not_kept_until_all_have_answered() -> None:
    over = threading.Event()

    async def slow(until: float) -> None:
        over.wait(max(0.0, until - clock.now()))

    async def interrupted(until: float) -> None:
        raise KeyboardInterrupt

    began = clock.now()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_blocking(BlockingRedisSide().gather([slow, interrupted], began + 5))
        assert lasted(began, 0.0, 2.5)
    finally:
        over.set()


@pytest.mark.parametrize("side", [BlockingRedisSide, AsyncRedisSide])
def test_answers_that_are_not_enough_are_waited_with_for_the_others(
    side: Callable[[], RedisSide],
) -> None:
    over = threading.Event()

    async def said(opinion: Opinion, until: float) -> Opinion:
        return opinion

    async def silent(until: float) -> Opinion:
        if side is BlockingRedisSide:
            over.wait(30)
        else:
            await asyncio.sleep(30)
        raise SILENT

    def agreed(opinions: Sequence[Opinion]) -> bool:
        return newest_of(opinions)[1] == 2

    async def main() -> list[Opinion | StoreError]:
        opinions = [Opinion(4, OLD), *AGREED]
        calls: list[Call[Opinion]] = [silent, *(partial(said, each) for each in opinions)]
        return await side().gather(calls, clock.now() + 30, agreed)

    began = clock.now()
    try:
        answers = run_blocking(main()) if side is BlockingRedisSide else asyncio.run(main())
    finally:
        over.set()
    assert lasted(began, 0.0, 10)
    assert answers[-2:] == AGREED
    assert isinstance(answers[0], StoreError)
