"""What a Redis server can say or be instead of granting: never taken for "free"."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Gone, Granted, Parting, Released, Renewal, Renewed, Slot
from tests.stores.redis.world import Party, new_claim, own_party, party, soon
from tests.support.pace import BUSY, took
from tests.support.servers import RedisServer
from tests.support.waiting import eventually


@pytest.fixture
def here(redis_server: RedisServer) -> Iterator[Party]:
    with party(redis_server.url) as one:
        yield one


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port) as client:
        yield client


# -- restarts


@pytest.mark.parametrize("kept", [False, True])
def test_a_restart_ends_what_was_believed_and_grants_nothing_for_one_ttl(kept: bool) -> None:
    options = ["--appendonly", "yes", "--appendfsync", "always"] if kept else []
    with RedisServer(options) as server, party(server.url) as one:
        granted = one.take()
        server.restart(empty=not kept)
        (gone,) = one.store.renew([renewal(one, granted)], soon())
        assert gone == Gone("store_restarted")
        with party(server.url, "restart_wait=60s") as careful:
            careful.key = one.key
            with pytest.raises(StoreUnavailable, match="restart_wait") as caught:
                careful.take(new_claim())
        left = caught.value.retry_after
        assert left is not None
        assert 30.0 < left <= 60.0


def renewal(one: Party, granted: Granted) -> Renewal:
    return Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)


def test_the_wait_after_a_restart_ends_and_tokens_have_grown(own_redis: RedisServer) -> None:
    with party(own_redis.url, "restart_wait=60s") as early:
        for _ in range(2):
            with pytest.raises(StoreUnavailable) as caught:
                early.take()
            assert caught.value.retry_after is not None
    with party(own_redis.url, "restart_wait=0.5s") as one:
        # It counts from the first look.
        time.sleep(0.5)
        token = one.take().token
        own_redis.restart(empty=True)
        with party(own_redis.url) as hasty:
            hasty.key = one.key
            assert hasty.take().token > token


def test_a_restart_seen_on_asyncio_ends_what_was_believed(own_redis: RedisServer) -> None:
    async def main(one: Party) -> None:
        granted = await one.take_async()
        own_redis.restart(empty=True)
        (gone,) = await one.engine.async_store().renew([renewal(one, granted)], soon())
        assert gone == Gone("store_restarted")

    with party(own_redis.url) as one:
        asyncio.run(main(one))


# -- logging in


def test_a_wrong_password_is_final_and_does_not_show() -> None:
    with RedisServer(password="sesame") as server:
        url = server.url.replace("sesame", "open-wrong")
        with party(url) as one:
            began = clock.now()
            with pytest.raises(StoreUnavailable) as caught:
                one.take()
            assert took(began) < BUSY
            assert caught.value.permanent
            assert "open-wrong" not in f"{caught.value}{caught.value.__cause__}"
            with pytest.raises(StoreUnavailable) as caught:
                asyncio.run(one.take_async())
            assert caught.value.permanent


def test_a_missing_password_is_final() -> None:
    with RedisServer(password="sesame") as server, party(f"redis://127.0.0.1:{server.port}") as one:
        with pytest.raises(StoreUnavailable) as caught:
            one.take()
        assert caught.value.permanent


def test_a_password_changed_later_is_an_outage_that_may_pass() -> None:
    with RedisServer(password="sesame") as server, party(server.url) as one:
        one.take()
        server.cli("CONFIG", "SET", "requirepass", "changed")
        one.store.close()
        with pytest.raises(StoreUnavailable) as caught:
            one.take()
        assert not caught.value.permanent


LOCKER = (
    "reset on >secret ~incumbent:* &incumbent:* +auth +ping +info +client|setname +evalsha +eval"
    " +get +set +del +pexpire +pttl +persist +time +publish +subscribe +unsubscribe"
    " +hmget +hset +hget +hdel +hlen +hincrby +hgetall +scan"
)


def test_a_user_with_the_least_rights_can_do_everything(redis_server: RedisServer) -> None:
    redis_server.cli("ACL", "SETUSER", "locker", *LOCKER.split())
    redis_server.cli("SCRIPT", "FLUSH")
    with party(f"redis://locker:secret@127.0.0.1:{redis_server.port}") as one:
        granted = one.take(ask=Ask(10.0, "h", slot=Slot("s", 5)))
        assert one.store.renew([renewal(one, granted)], soon()) == [Renewed()]
        one.store.put(one.key, "pause", b"{}", None, soon())
        one.store.put(one.key, "pause", None, None, soon())
        assert one.store.scan("faults", one.key.name, soon())
        one.store.wait_change(one.key, one.refused().seen, soon(0.05))
        assert (
            one.store.give(one.key, one.claim, None, soon(), parting=Parting(slot="s"))
            == Released()
        )


def test_what_a_user_may_not_do_is_final_before_it_ever_worked(redis_server: RedisServer) -> None:
    rights = LOCKER.replace("+info", "-info").split()
    redis_server.cli("ACL", "SETUSER", "blind", *rights)
    with party(f"redis://blind:secret@127.0.0.1:{redis_server.port}") as one:
        with pytest.raises(StoreUnavailable, match="NOPERM") as caught:
            one.take()
        assert caught.value.permanent


# -- servers that must not grant


def test_a_server_that_may_evict_leases_is_refused(own_redis: RedisServer) -> None:
    own_redis.cli("CONFIG", "SET", "maxmemory", "100mb")
    own_redis.cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    with party(own_redis.url) as one:
        with pytest.raises(StoreUnavailable, match="noeviction") as caught:
            one.take()
        assert caught.value.permanent
    with party(own_redis.url, "restart_wait=0&allow_eviction=yes") as one:
        assert isinstance(one.take(), Granted)


def test_a_replica_is_refused_and_so_is_a_master_that_became_one(
    own_redis: RedisServer, redis_server: RedisServer
) -> None:
    with party(own_redis.url) as one:
        one.take()
        own_redis.cli("REPLICAOF", "127.0.0.1", str(redis_server.port))
        with pytest.raises(StoreUnavailable, match=r"READONLY|replica"):
            one.take(new_claim())
        one.store.close()
        # A new connection is refused before anything is asked of it.
        with pytest.raises(StoreUnavailable, match="is a replica"):
            one.store.read(one.key, soon())


def test_a_replica_without_its_master_is_unavailable(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one:
        one.take()
        own_redis.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
        own_redis.cli("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreUnavailable, match="MASTERDOWN"):
            one.take(new_claim())


def test_a_master_without_enough_replicas_is_unavailable(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one:
        one.take()
        own_redis.cli("CONFIG", "SET", "min-replicas-to-write", "1")
        with pytest.raises(StoreUnavailable, match="NOREPLICAS"):
            one.take(new_claim())


def test_a_server_that_loads_its_data_is_unavailable_not_free() -> None:
    with RedisServer(["--loading-process-events-interval-bytes", "1024"]) as server:
        server.cli("DEBUG", "POPULATE", "30000")
        server.cli("SAVE")
        server.options += ["--key-load-delay", "50"]
        server.kill()
        server.start(loaded=False)
        with party(server.url) as one, pytest.raises(StoreUnavailable, match=r"LOADING|loading"):
            one.take()


def test_a_server_that_is_busy_with_a_script_is_unavailable(own_redis: RedisServer) -> None:
    own_redis.cli("CONFIG", "SET", "busy-reply-threshold", "50")
    with party(own_redis.url) as one:
        one.take()
        spin = ("EVAL", "while true do end", "0")
        spinning = threading.Thread(target=own_redis.cli, args=spin, daemon=True)
        spinning.start()
        eventually(lambda: own_redis.cli("PING").startswith("BUSY"))
        with pytest.raises(StoreUnavailable, match="BUSY"):
            one.take()
        own_redis.cli("SCRIPT", "KILL")
        spinning.join(20)
        assert isinstance(one.take(), Granted)


def test_a_server_out_of_memory_grants_nothing_and_still_lets_go(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one:
        granted = one.take()
        own_redis.cli("CONFIG", "SET", "maxmemory", "1")
        try:
            meta = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch, b"new")
            assert one.store.renew([meta], soon()) == [Renewed()]
            assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
            with pytest.raises(StoreUnavailable, match="OOM"):
                one.take(new_claim())
        finally:
            own_redis.cli("CONFIG", "SET", "maxmemory", "0")


@pytest.mark.parametrize("how", ["sync", "async"])
def test_scripts_that_the_server_forgot_are_sent_again(
    here: Party, raw: redis.Redis, how: str
) -> None:
    def both() -> None:
        granted = here.take()
        raw.script_flush()
        assert here.store.renew([renewal(here, granted)], soon()) == [Renewed()]
        raw.script_flush()
        assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()

    async def both_async() -> None:
        granted = await here.take_async()
        store = here.engine.async_store()
        raw.script_flush()
        assert await store.renew([renewal(here, granted)], soon()) == [Renewed()]
        raw.script_flush()
        given = await store.give(here.key, here.claim, granted.token, soon())
        assert given == Released()

    both() if how == "sync" else asyncio.run(both_async())


# -- ways to connect


def test_a_unix_socket_serves_both_sides() -> None:
    with RedisServer(unix_socket=True) as server, party(server.socket_url) as one:
        token = one.take().token
        assert asyncio.run(one.take_async()).token == token


@pytest.mark.parametrize("kind", ["client", "pool"])
@pytest.mark.parametrize("made", ["sync", "async"])
def test_a_users_own_client_serves_both_sides(
    redis_server: RedisServer, kind: str, made: str
) -> None:
    import redis.asyncio

    module = redis if made == "sync" else redis.asyncio
    client = module.Redis(port=redis_server.port, decode_responses=True, protocol=3)
    driver = client if kind == "client" else client.connection_pool
    one = own_party(driver, restart_wait=0)
    token = one.take().token
    assert asyncio.run(one.take_async()).token == token
    assert client.connection_pool.connection_kwargs["protocol"] == 3
    one.store.close()


def test_databases_are_apart(redis_server: RedisServer) -> None:
    with party(f"{redis_server.url}/1") as one, party(f"{redis_server.url}/2") as two:
        two.key = one.key
        one.take()
        two.take()


# -- doctor


def test_the_doctor_finds_nothing_wrong_with_a_good_server(redis_server: RedisServer) -> None:
    with party(redis_server.url) as one:
        found = one.engine.diagnose(15.0, soon())
    assert not [finding for finding in found if finding[0] == "error"]
    assert "Redis 7" in str(found)


def test_the_doctor_names_what_is_wrong(own_redis: RedisServer, redis_server: RedisServer) -> None:
    own_redis.cli("CONFIG", "SET", "maxmemory", "100mb")
    own_redis.cli("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    own_redis.cli("REPLICAOF", "127.0.0.1", str(redis_server.port))
    with party(own_redis.url, "") as one:
        found = str(one.engine.diagnose(15.0, soon()))
    for word in ("evicted", "role slave", "appendonly is off", "grants nothing yet"):
        assert word in found


def test_the_doctor_names_a_resync_that_ends_between_two_looks(own_redis: RedisServer) -> None:
    def warned() -> bool:
        with party(own_redis.url) as one:
            return "there and back" in str(one.engine.diagnose(15.0, soon()))

    own_redis.cli("CONFIG", "SET", "repl-diskless-sync-delay", "1")
    assert not warned()
    with RedisServer() as replica:
        replica.cli("REPLICAOF", "127.0.0.1", str(own_redis.port))
        eventually(warned)
        own_redis.cli("CONFIG", "SET", "repl-diskless-sync-delay", "2")
        assert not warned()
        own_redis.cli("CONFIG", "SET", "repl-diskless-sync", "no")
        assert warned()


def test_the_doctor_survives_a_server_that_is_not_there() -> None:
    with party("redis://127.0.0.1:1") as one:
        ((level, what, _),) = one.engine.diagnose(15.0, soon())
    assert (level, "cannot be reached" in what) == ("error", True)


def test_errors_of_the_store_are_all_there_is(tmp_path: Path) -> None:
    with party(f"redis+unix://{tmp_path}/no.sock") as one:
        with pytest.raises(StoreError):
            one.take()
        with pytest.raises(StoreError):
            asyncio.run(one.take_async())
