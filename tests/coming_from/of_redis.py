"""redis-py, python-redis-lock, redlock-ng, RedLock.net, aioredis-lock, portalocker's RedisLock."""

from __future__ import annotations

import time
from unittest import mock

import pytest

import incumbent
from tests.coming_from.cases import LIBRARIES, Library, Servers, row
from tests.coming_from.sides import NOT_RUN, Both, Here, Outcome
from tests.support.waiting import eventually

TAKE = Outcome("lock.acquire()", "lease = lock.acquire()")
LOSE = "for key in r.keys('*job*'): r.delete(key)"
"""As an eviction would, or an operator."""


def of_one_server(servers: Servers) -> str:
    return (
        "import redis, redis.lock, redis_lock, incumbent.compat\n"
        f"r = redis.Redis(port={servers.redis.port})"
    )


LIBRARIES["redis-py"] = Library(
    of_one_server, TAKE, lambda servers: servers.redis.url, of_one_server
)
LIBRARIES["python-redis-lock"] = LIBRARIES["redis-py"]


def lose(both: Both) -> None:
    """What either holds is gone."""
    both.theirs.run(both.named(LOSE))


@row("redis-py", 'lock = r.lock("job", timeout=60)')
def theirs_ends_by_itself_and_ours_is_renewed(both: Both) -> None:
    both.take()
    assert both.each('r.pttl("job") <= 60_000', "lease.remaining <= 15") == ("True", "True")


@row("redis-py", 'lock = r.lock("job", timeout=3)')
def a_body_that_takes_longer_is_alone_with_ours_only(both: Both) -> None:
    both.run()
    both.take()
    time.sleep(3.5)  # longer than both ttls
    assert both.each("lock.locked()", "lock.locked()") == ("False", "True")
    assert both.each("lock.release()", "lease.release()") == ("raises LockNotOwnedError", "True")


@row("redis-py", "lock.acquire()")
def acquiring(both: Both) -> None:
    assert both.run() == ("True", "Lease")


@row("redis-py", "lock.acquire(blocking=False)")
@row("python-redis-lock", "lock.acquire(blocking=False)")
def trying_once(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "None")
    assert both.run() == ("True", "Lease")


@row("redis-py", "lock.acquire(blocking_timeout=1)")
@row("python-redis-lock", "lock.acquire(timeout=1)")
def waiting_for_a_time(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "raises AcquireTimeout")
    assert both.run() == ("True", "Lease")


@row("redis-py", "with lock:")
@row("python-redis-lock", "with lock:")
def a_body(both: Both) -> None:
    assert both.run() == ("'ran'", "'ran'")
    assert both.each("lock.locked()", "lock.locked()") == ("False", "False")


@row("redis-py", "lock.locked()")
@row("python-redis-lock", "lock.locked()")
def whether_anybody_holds_it(both: Both) -> None:
    assert both.run() == ("False", "False")
    with both.held():
        assert both.run() == ("True", "True")


@row("redis-py", "lock.owned()")
def whether_this_one_holds_it(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "False")
    both.take()
    assert both.run() == ("True", "True")
    lose(both)
    assert both.run() == ("False", "True"), "ours asks no server, and has not renewed yet"


@row("redis-py", "lock.extend(60)")
def renewing_by_hand(both: Both) -> None:
    both.take()
    assert both.run() == ("True", "float")


@row("redis-py", "lock.release()")
@row("python-redis-lock", "lock.release()")
def releasing(both: Both) -> None:
    both.take()
    assert "raises" not in " ".join(both.run())
    both.take()
    lose(both)
    late = {"redis-py": "LockNotOwnedError", "python-redis-lock": "NotAcquired"}[both.row.section]
    assert both.run() == (f"raises {late}", "raises LeaseLost")


@row("redis-py", 'lock = r.lock("job", timeout=60, thread_local=False)')
def releasing_in_another_thread(both: Both) -> None:
    both.take()
    for side in (both.theirs, both.ours):
        assert isinstance(side, Here)
        with pytest.raises((AttributeError, incumbent.NotHeld)):
            side.names["lock"].release()  # here, which is not their thread
    both.each("lock.release()", "lease.release()")
    both.run()
    both.theirs.run("lock.acquire()")
    assert isinstance(both.theirs, Here)
    assert isinstance(both.ours, Here)
    both.theirs.names["lock"].release()
    both.ours.names["lease"].release()
    assert both.each("lock.locked()", "lock.locked()") == ("False", "False")


@row("redis-py", 'lock = redis.lock.Lock(r, "job", timeout=60)')
def changing_the_import_alone(both: Both) -> None:
    both.run()
    assert both.theirs.run("lock.acquire()") == "True"
    assert both.ours.run("lock.acquire(blocking=False)") == "False"
    assert both.theirs.run("lock.release()") == "None"
    assert both.ours.run("lock.acquire()") == "True"
    assert both.theirs.run("lock.acquire(blocking=False)") == "False"
    assert both.ours.run("lock.release()") == "None"


@row("python-redis-lock", 'lock = redis_lock.Lock(r, "job", expire=60)')
def a_whole_number_of_seconds_and_a_renewed_lease(both: Both) -> None:
    both.take()
    assert both.each('r.pttl("lock:job") <= 60_000', "lease.remaining <= 15") == ("True", "True")


@row("python-redis-lock", 'lock = redis_lock.Lock(r, "job")')
def a_holder_that_dies_blocks_for_ever_or_for_a_ttl(both: Both) -> None:
    both.run()
    both.take()
    assert both.each('r.ttl("lock:job")', "lease.remaining <= 15") == ("-1", "True")


@row("python-redis-lock", 'lock = redis_lock.Lock(r, "job", expire=1, auto_renewal=True)')
def the_loss_is_heard_at_the_release_or_by_the_body(both: Both) -> None:
    both.run()
    both.take()
    died = []
    with mock.patch("threading.excepthook", lambda told: died.append(told.exc_type.__name__)):
        lose(both)
        eventually(lambda: died == ["NotAcquired"])
        eventually(lambda: both.ours.run("lease.check()") == "raises LeaseLost")
    assert both.theirs.run("lock.release()") == "raises NotAcquired"


@row("python-redis-lock", "lock.get_owner_id() == lock.id")
def asking_whether_it_is_ours(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "False")
    both.take()
    assert both.run() == ("True", "True")


@row("python-redis-lock", "lock.extend()")
def extending(both: Both) -> None:
    both.take()
    assert both.run() == ("None", "float")


@row("python-redis-lock", "lock.reset()")
def taking_it_from_whoever_has_it(both: Both) -> None:
    with both.held() as other:
        assert both.run() == ("None", "0")
        assert other.theirs.run("lock.release()") == "raises NotAcquired"
        eventually(lambda: other.ours.run("lease.lost") != "''")


def of_three_servers(servers: Servers) -> str:
    urls = [server.url for server in servers.three]
    return f"from redlock import Redlock\nservers = {urls}"


def quorum(servers: Servers) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers.three)
    return f"redis+quorum://{hosts}?restart_wait=0"


LIBRARIES["redlock-ng"] = Library(
    of_three_servers,
    Outcome('lock = manager.acquire("job", 60_000)', TAKE.ours),
    quorum,
    give="manager.release(lock)",
)


@row("redlock-ng", "manager = Redlock(servers)")
def a_majority_of_servers(both: Both) -> None:
    assert both.made == ("Redlock", "Lock")


@row("redlock-ng", 'lock = manager.acquire("job", 60_000)')
def trying_for_a_second(both: Both) -> None:
    with both.held():
        assert both.run() == ("None", "raises AcquireTimeout")
    assert both.run() == ("Lock", "Lease")


@row("redlock-ng", 'lock = manager.acquire("job", 60_000, blocking=True)')
def waiting_without_an_end(both: Both) -> None:
    with both.held() as other:
        waiting = both.theirs.start(both.named(both.row.theirs)), both.ours.start(both.row.ours)
        assert not any(future.done() for future in waiting)
        other.each("manager.release(lock)", "lease.release()")
        assert [future.result() for future in waiting] == ["Lock", "Lease"]


@row("redlock-ng", 'with manager.lock("job", 60_000) as lock:')
def a_body_without_the_lock(both: Both) -> None:
    with both.held():
        assert both.run() == ("'ran'", "raises NotAcquired")
        assert both.theirs.run("lock.valid") == "False", "the body has to look"
    assert both.run() == ("'ran'", "'ran'")


@row("redlock-ng", "lock.valid")
def whether_it_still_holds(both: Both) -> None:
    both.each('lock = manager.acquire("job", 50)', 'lease = Lock("job", ttl=1).acquire()')
    both.theirs.run("import time; time.sleep(0.1)")
    for server in range(3):
        both.theirs.run(f"import redis; redis.Redis.from_url(servers[{server}]).flushall()")
    assert both.theirs.run('manager.acquire("job", 60_000)') == "Lock", "another has it"
    assert both.run().theirs == "True"
    eventually(lambda: both.run().ours == "False")


@row("redlock-ng", "lock.validity")
def how_long_it_still_holds(both: Both) -> None:
    both.take()
    before = both.theirs.run("lock.validity")
    time.sleep(0.01)
    assert both.run() == (before, "float")
    assert both.ours.run("lease.remaining <= 15") == "True"


@row("redlock-ng", "manager.extend(lock, 60_000)")
def extending_a_redlock(both: Both) -> None:
    both.take()
    assert both.run() == ("True", "float")


@row("redlock-ng", "manager.release(lock)")
def releasing_a_redlock(both: Both) -> None:
    both.take()
    assert both.run() == ("None", "True")
    assert both.each('manager.acquire("job", 60_000)', "lock.acquire(timeout=0)") == (
        *("Lock", "Lease"),
    )


LIBRARIES["RedLock.net"] = Library(lambda servers: "pass", TAKE, quorum, environment=NOT_RUN)


@row("RedLock.net", 'factory.CreateLockAsync("job", expiry)')
def ours_of_trying_once(both: Both) -> None:
    assert both.made.ours == "Lease"
    assert both.run().ours == "None"


@row("RedLock.net", 'factory.CreateLockAsync("job", expiry, wait, retry)')
def ours_of_waiting(both: Both) -> None:
    assert both.run().ours == "raises AcquireTimeout"
    both.ours.run("lease.release()")
    assert both.run().ours == "Lease"


@row("RedLock.net", "redLock.IsAcquired")
@row("RedLock.net", "redLock.DisposeAsync()")
def ours_of_a_held_lock(both: Both) -> None:
    assert both.run().ours == "True"


@row("RedLock.net", "redLock.ExtendCount")
def ours_of_renewals(both: Both) -> None:
    assert both.run().ours == "float"


def of_aioredis(servers: Servers) -> str:
    url = f"redis://127.0.0.1:{servers.redis.port}"
    return (
        "import aioredis\nfrom aioredis_lock import RedisLock\n"
        f"pool = await aioredis.create_redis_pool({url!r})"
    )


def of_redis_asyncio(servers: Servers) -> str:
    return (
        "import asyncio, incumbent.compat, redis.asyncio\nin_a_task = True\n"
        f"client = redis.asyncio.Redis(port={servers.redis.port})"
    )


LIBRARIES["aioredis-lock"] = Library(
    of_aioredis,
    Outcome("await lock.acquire()", "lease = await lock.acquire()"),
    lambda servers: servers.redis.url,
    of_redis_asyncio,
    give="await lock.release()",
    environment="old",
)


@row("aioredis-lock", 'lock = RedisLock(pool, "job", timeout=60, wait_timeout=1)')
def its_timeout_is_the_ttl(both: Both) -> None:
    both.take()
    pttl = 'await pool.pttl("job") <= 60_000'
    assert both.each(pttl, "lease.remaining <= 15") == ("True", "True")


@row("aioredis-lock", "async with lock:")
def a_body_of_a_task(both: Both) -> None:
    with both.held():
        assert both.run() == ("raises LockTimeoutError", "raises AcquireTimeout")
    assert both.run() == ("'ran'", "'ran'")


@row("aioredis-lock", "await lock.acquire(60, 1)")
def waiting_in_a_task(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "raises AcquireTimeout")
    assert both.run() == ("True", "AsyncLease")


@row("aioredis-lock", "await lock.is_owner()")
def whether_this_task_holds_it(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "False")
    taken = (
        f"lease = await lock.acquire()\n{column}" for column in (both.row.theirs, both.row.ours)
    )
    assert both.each(*taken) == ("True", "True")


@row("aioredis-lock", "await lock.renew(60)")
def renewing_in_a_task(both: Both) -> None:
    both.take()
    assert both.run() == ("True", "float")


@row("aioredis-lock", "await lock.release()")
def releasing_in_a_task(both: Both) -> None:
    both.take()
    assert both.run() == ("True", "True")
    both.take()
    both.theirs.run(both.named("for key in await pool.keys('*job*'): await pool.delete(key)"))
    assert both.run() == ("False", "raises LeaseLost")


@row("aioredis-lock", 'lock = RedisLock(pool, "job", timeout=60)')
def changing_the_import_of_a_task(both: Both) -> None:
    both.run()
    assert both.theirs.run("await lock.acquire(60, 0)") == "True"
    assert both.ours.run("await lock.acquire(60, 0)") == "False"
    assert both.theirs.run("await lock.release()") == "True"
    assert both.ours.run("await lock.acquire(60, 0)") == "True"
    assert both.theirs.run("await lock.acquire(60, 0)") == "False"
    both.ours.run("await lock.release()")
    both.ours.run("await client.aclose()")


def of_portalocker(servers: Servers) -> str:
    return f"import portalocker, redis\nr = redis.Redis(port={servers.redis.port})"


LIBRARIES["portalocker.RedisLock"] = Library(
    of_portalocker, TAKE, lambda servers: servers.redis.url, environment="today"
)


@row(
    "portalocker.RedisLock",
    'lock = portalocker.RedisLock("job", connection=r, timeout=1, fencing=True,'
    " interrupt_on_lost=False)",
)
def a_subscription_is_the_lock(both: Both) -> None:
    assert both.made == ("RedisLock", "Lock")


@row("portalocker.RedisLock", "lock.acquire()")
def waiting_for_the_subscribers(both: Both) -> None:
    with both.held():
        assert both.run() == ("raises AlreadyLocked", "raises AcquireTimeout")
    assert both.run() == ("RedisLock", "Lease")


@row("portalocker.RedisLock", "with lock:")
def a_body_that_subscribes(both: Both) -> None:
    assert both.run() == ("'ran'", "'ran'")


@row("portalocker.RedisLock", "lock.ensure_held()")
def asking_in_the_body(both: Both) -> None:
    both.take()
    assert both.run() == ("None", "None")
    both.theirs.run(both.named("r.delete(*r.keys('incumbent:*job*'))"))
    both.theirs.run("r.execute_command('CLIENT', 'KILL', 'TYPE', 'PUBSUB')")
    eventually(lambda: both.run() == ("raises LockLostError", "raises LeaseLost"))


@row("portalocker.RedisLock", "lock.fence_token")
def a_number_that_grows(both: Both) -> None:
    both.take()
    assert all(int(token) > 0 for token in both.run())


@row("portalocker.RedisLock", "lock.release()")
def releasing_the_subscription(both: Both) -> None:
    both.take()
    assert both.run() == ("None", "True")
