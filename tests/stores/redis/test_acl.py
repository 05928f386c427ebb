"""The documented rules for users are enough for everything, also on a server that was restarted."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent.model import (
    UNLIMITED,
    Ask,
    Gone,
    Granted,
    Parting,
    Queue,
    Queued,
    Refused,
    Released,
    Renewal,
    Renewed,
    Slot,
    Stored,
)
from tests import tiers
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import ROOT, RedisServer

pytestmark = pytest.mark.server

DOCS = (Path(ROOT) / "docs" / "redis.md").read_text()


def rule(name: str) -> list[str]:
    """The words of a rule as the documentation has it."""
    found = re.search(rf"ACL SETUSER {name} on >SECRET (.*?)```", DOCS, re.DOTALL)
    assert found, f"docs/redis.md has no rule for {name}"
    return ["reset", "on", ">secret", *found[1].split()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One that keeps its users, and what it was told, over a restart."""
    users = tmp_path_factory.mktemp("acl") / "users.acl"
    users.write_text("user default on nopass ~* &* +@all\n")
    kept = ["--appendonly", "yes", "--appendfsync", "always", "--aclfile", str(users)]
    with RedisServer(kept) as running:
        assert running.cli("ACL", "SETUSER", "incumbent", *rule("incumbent")) == "OK"
        running.cli("ACL", "SAVE")
        yield running


IN_LINE = Ask(10.0, "third", queue=Queue(5.0))


def everything(one: Party) -> None:
    """Every operation there is, on both sides."""
    granted = one.take(ask=Ask(10.0, "h", slot=Slot("s", 5), candidacy=2.0))
    assert one.refused(ask=Ask(10.0, "other", candidacy=2.0)).reason == "held"
    waiting = one.store.take(one.key, new_claim(), IN_LINE, soon())
    assert isinstance(waiting, Queued | Refused)
    meta = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch, b"meta")
    assert one.store.renew([meta], soon()) == [Renewed()]
    assert isinstance(one.store.put(one.key, "pause", b"{}", None, soon()), Stored)
    one.store.put(one.key, "pause", None, None, soon())
    record = one.store.read(one.key, soon())
    assert (record.holdings[0].meta, len(record.candidates)) == (b"meta", 1)
    assert [each.key for each in one.store.scan("faults", one.key.name, soon())] == [one.key]
    one.store.wait_change(one.key, one.refused().seen, soon(0.05))
    assert asyncio.run(one.take_async()).token == granted.token
    given = one.store.give(
        one.key, one.claim, None, soon(), parting=Parting(slot="s", closed_for=0.01)
    )
    assert given == Released()
    for permits in (2, UNLIMITED):
        shared_by_several(one, permits)


def shared_by_several(one: Party, permits: int) -> None:
    """The operations on a lease that is shared; one holding of it runs out."""
    key = one.key._replace(name=f"{one.key.name}-of-{permits}")
    brief, lasting, alone = new_claim(), new_claim(), new_claim()
    assert isinstance(one.store.take(key, brief, Ask(0.05, "h", permits), soon()), Granted)
    granted = one.store.take(key, lasting, Ask(10.0, "h", permits), soon())
    assert isinstance(granted, Granted)
    assert isinstance(one.store.take(key, lasting, Ask(10.0, "h", permits), soon()), Granted)
    assert isinstance(one.store.take(key, alone, Ask(10.0, "h", queue=Queue(5.0)), soon()), Queued)
    assert one.store.give(key, alone, 0, soon()) == Gone()
    time.sleep(0.1)  # the first holding ends by the server's clock
    renewal = Renewal(key, lasting, granted.token, 10.0, granted.epoch, shared=True)
    assert one.store.renew([renewal], soon()) == [Renewed()]
    assert isinstance(one.store.take(key, new_claim(), Ask(10.0, "h", permits), soon()), Granted)
    assert len(one.store.read(key, soon()).holdings) == 2
    assert (
        one.store.give(key, lasting, granted.token, soon(), parting=Parting(shared=True))
        == Released()
    )


def test_a_user_with_the_least_rights_can_do_everything(server: RedisServer) -> None:
    url = f"redis://incumbent:secret@127.0.0.1:{server.port}"
    with party(url) as one:
        everything(one)
        server.cli("SCRIPT", "FLUSH")
        one.claim = new_claim()
        one.key = one.key._replace(name=one.key.name + "2")
        everything(one)
        one.key = one.key._replace(name=one.key.name + "3")
        granted = one.take(one.claim)
        server.restart()
        (gone,) = one.store.renew(
            [Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)], soon()
        )
        assert gone == Gone("store_restarted")
        one.claim = new_claim()
        one.key = one.key._replace(name=one.key.name + "4")
        everything(one)


def test_the_rule_has_each_command_of_the_scripts() -> None:
    scripts = (Path(ROOT) / "src/incumbent/stores/redis").glob("*.lua")
    called = {
        found.lower()
        for script in scripts
        for found in re.findall(r"\b(?:call|try)\('([A-Z]+)'", script.read_text())
    }
    assert len(called) > 20
    assert called <= {word.removeprefix("+") for word in rule("incumbent")}


def test_the_rights_end_where_the_rule_does(server: RedisServer) -> None:
    said = [
        server.cli("ACL", "DRYRUN", "incumbent", *command)
        for command in (("FLUSHALL",), ("GET", "other"), ("CONFIG", "GET", "*"), ("KEYS", "*"))
    ]
    assert all("OK" not in each for each in said), said


@pytest.mark.left(tiers.LONG)
def test_the_rules_for_sentinels_and_nodes_are_enough() -> None:
    with Sentinels(replicas=1) as sentinels:
        for sentinel in sentinels.sentinels:
            assert sentinel.cli("ACL", "SETUSER", "asker", *rule("asker")) == "OK"
        for node in sentinels.nodes:
            assert node.server.cli("ACL", "SETUSER", "incumbent", *rule("incumbent")) == "OK"
            assert node.server.cli("ACL", "SETUSER", "incumbent", "+wait") == "OK"
        url = sentinels.url.replace("://", "://incumbent:secret@")
        login = "sentinel_username=asker&sentinel_password=secret"
        with party(url, f"restart_wait=0&wait_replicas=1:5s&{login}") as party_of_it:
            everything(party_of_it)
    with RedisCluster() as cluster:
        more = ("+cluster|slots", "+cluster|info", "+asking")
        for member in cluster.nodes:
            assert member.cli("ACL", "SETUSER", "incumbent", *rule("incumbent"), *more) == "OK"
        with party(cluster.url.replace("://", "://incumbent:secret@")) as routed:
            everything(routed)
