"""etcd3gw, etcd3, tooz."""

from __future__ import annotations

from tests.coming_from.cases import LIBRARIES, Library, Servers, row
from tests.coming_from.sides import Both, Outcome
from tests.support.waiting import eventually

TAKE = Outcome("lock.acquire()", "lease = lock.acquire()")


def of_etcd3gw(servers: Servers) -> str:
    return (
        "import etcd3gw\n"
        f"client = etcd3gw.client(host='127.0.0.1', port={servers.etcd.port}, api_path='/v3/')"
    )


def of_etcd3(servers: Servers) -> str:
    return f"import etcd3\nclient = etcd3.client(host='127.0.0.1', port={servers.etcd.port})"


def store(servers: Servers) -> str:
    return f"etcd://{servers.etcd.endpoint}"


LIBRARIES["etcd3gw"] = Library(of_etcd3gw, TAKE, store, environment="today")
LIBRARIES["etcd3"] = Library(of_etcd3, TAKE, store, environment="old")


def lose(both: Both) -> None:
    """Either record is deleted, and ours knows it."""
    both.theirs.run(both.named("client.delete('/locks/job')"))
    assert both.ours.run(both.named("incumbent break --force job")) == "0"
    eventually(lambda: both.ours.run("lease.lost") != "''")


@row("etcd3gw", 'lock = client.lock("job", ttl=60)')
@row("etcd3", 'lock = client.lock("job", ttl=60)')
def theirs_ends_by_itself_and_ours_is_renewed(both: Both) -> None:
    both.take()
    assert both.each("lock.lease.id > 0", "lease.remaining <= 15") == ("True", "True")


@row("etcd3gw", "lock.acquire()")
def trying_once(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "None")
    assert both.run() == ("True", "Lease")


@row("etcd3gw", "with lock:")
def a_body_without_the_lock(both: Both) -> None:
    with both.held():
        assert both.run() == ("'ran'", "raises NotAcquired")
    assert both.run() == ("'ran'", "'ran'")


@row("etcd3", "lock.acquire(timeout=1)")
@row("etcd3", "lock.acquire()")
def waiting_for_a_time(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "raises AcquireTimeout")
    assert both.run() == ("True", "Lease")


@row("etcd3", "with lock:")
def a_body_after_ten_seconds(both: Both) -> None:
    with both.held():
        assert both.run() == ("'ran'", "raises AcquireTimeout")
    assert both.run() == ("'ran'", "'ran'")


@row("etcd3gw", "lock.is_acquired()")
@row("etcd3", "lock.is_acquired()")
def whether_this_one_holds_it(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "False")
    both.take()
    assert both.run() == ("True", "True")


@row("etcd3gw", "lock.refresh()")
def renewing_by_hand(both: Both) -> None:
    both.take()
    assert both.run() == ("60", "float")
    both.theirs.run("lock.lease.revoke()")
    lose(both)
    assert both.theirs.run("lock.release()") == "False"
    assert both.run().ours == "raises LeaseLost"


@row("etcd3", "lock.refresh()")
def renewing_by_hand_over_grpc(both: Both) -> None:
    both.take()
    assert both.run() == ("list", "float")


@row("etcd3gw", "lock.release()")
@row("etcd3", "lock.release()")
def releasing(both: Both) -> None:
    both.take()
    assert both.run() == ("True", "True")
    both.take()
    lose(both)
    assert both.run() == ("False", "raises LeaseLost")


def of_tooz(servers: Servers) -> str:
    url = f"redis://127.0.0.1:{servers.redis.port}"
    return (
        "import uuid\nfrom tooz import coordination\n"
        f"coordinator = coordination.get_coordinator({url!r}, uuid.uuid4().bytes)\n"
        "coordinator.start(start_heart=True)"
    )


LIBRARIES["tooz"] = Library(of_tooz, TAKE, lambda servers: servers.redis.url, environment="today")


@row("tooz", 'lock = coordinator.get_lock(b"job")')
def both_are_renewed(both: Both) -> None:
    both.take()
    assert both.each("coordinator.heart.is_alive()", "lease.remaining <= 15") == ("True", "True")


@row("tooz", "lock.acquire(blocking=False)")
def trying_tooz_once(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "None")
    assert both.run() == ("True", "Lease")


@row("tooz", "lock.acquire(blocking=1)")
def waiting_for_tooz(both: Both) -> None:
    with both.held():
        assert both.run() == ("False", "raises AcquireTimeout")
    assert both.run() == ("True", "Lease")


@row("tooz", "with lock:")
def a_body_of_tooz(both: Both) -> None:
    assert both.run() == ("'ran'", "'ran'")


@row("tooz", "with lock(blocking=False):")
def a_body_that_does_not_wait(both: Both) -> None:
    with both.held():
        assert both.run() == ("raises LockAcquireFailed", "raises NotAcquired")
    assert both.run() == ("'ran'", "'ran'")


@row("tooz", "lock.is_still_owner()")
def whether_it_still_holds(both: Both) -> None:
    both.take()
    assert both.run() == ("True", "True")
    both.each("lock.break_()", "incumbent break --force job")
    assert both.run().theirs == "False"
    eventually(lambda: both.run().ours == "False")


@row("tooz", "lock.release()")
def releasing_tooz(both: Both) -> None:
    both.take()
    assert both.run() == ("True", "True")
    both.take()
    both.theirs.run("lock.break_()")
    both.ours.run(both.named("incumbent break --force job"))
    assert both.run() == ("False", "raises LeaseLost")


@row("tooz", "lock.break_()")
def taking_it_from_whoever_has_it(both: Both) -> None:
    with both.held() as other:
        assert both.run() == ("True", "0")
        assert other.theirs.run("lock.is_still_owner()") == "False"
        eventually(lambda: other.ours.run("lease.lost") != "''")
