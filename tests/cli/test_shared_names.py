"""`run --permits`, and what operators see of names that several hold."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from incumbent import AcquireTimeout, Client, Lease
from incumbent.supervise.codes import BUSY, USAGE
from tests import tiers
from tests.cli.tool import answer, incumbent, start


@pytest.fixture
def client(store: str) -> Iterator[Client]:
    with Client(store) as client:
        yield client


@pytest.fixture
def two_of_three(client: Client) -> Iterator[list[Lease]]:
    """A semaphore of which alice and bob have a permit."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(client.semaphore("api", 3, holder=who).acquire(0))
            for who in ("alice", "bob")
        ]


# -- run -----------------------------------------------------------------------------------------


def test_so_many_runs_are_at_work_at_once_and_the_next_one_skips(store: str) -> None:
    words = ("-s", store, "run", "job", "--permits", "2")
    with ExitStack() as stack:
        for who in ("one", "two"):
            it = stack.enter_context(
                start(*words, "--holder", who, "--", "sh", "-c", "echo; exec sleep 30")
            )
            stack.callback(it.terminate)
            assert it.stdout is not None
            assert it.stdout.readline() == "\n"
        third = incumbent(*words, "--", "echo", "ran")
        assert (third.returncode, third.stdout) == (BUSY, "")
        assert re.search(
            r"job: skipped: no permit left of 2, one is held by (one|two)", third.stderr
        )
        late = incumbent(*words, "--wait=1s", "--", "echo", "ran")
        assert late.returncode == BUSY
        assert "gave up after" in late.stderr
        held = answer("-s", store, "status", "job")
        assert ({one["holder"] for one in held["holders"]}, held["permits"]) == ({"one", "two"}, 2)
    assert incumbent(*words, "--", "true").returncode == 0


def test_a_run_waits_for_a_permit(store: str, client: Client) -> None:
    lease = client.semaphore("job", 1).acquire(0)
    words = ("-s", store, "run", "job", "--permits", "1", "--wait", "--", "echo", "ran")
    with start(*words) as it:
        with pytest.raises(subprocess.TimeoutExpired):
            it.communicate(timeout=0.5)
        lease.release()
        said, _ = it.communicate(timeout=60)
        assert (it.returncode, said) == (0, "ran\n")


@pytest.mark.left(tiers.FORMS, "0", "two")
@pytest.mark.parametrize("number", ["0", "-1", "10001", "2.5", "two", ""])
def test_a_number_of_permits_that_cannot_be_is_refused_with_it(store: str, number: str) -> None:
    done = incumbent("-s", store, "run", "job", f"--permits={number}", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert f"--permits={number!r}: a number from 1 to 10000" in done.stderr


@pytest.mark.left(tiers.FORMS, "--slot=monday")
@pytest.mark.parametrize("option", ["--once-per=1h", "--slot=monday", "--at-least-for=5s"])
def test_permits_and_what_closes_a_name_exclude_each_other(store: str, option: str) -> None:
    done = incumbent("-s", store, "run", "job", "--permits=2", option, "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "a shared lease has others inside" in done.stderr


@pytest.mark.usefixtures("two_of_three")
def test_another_number_of_permits_is_refused_with_both(store: str) -> None:
    done = incumbent("-s", store, "run", "api", "--permits=2", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "with 3 permits, and we ask with 2 permits" in done.stderr


def test_a_store_without_shared_leases_refuses_permits() -> None:
    quorum = "redis+quorum://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    done = incumbent("-s", quorum, "run", "job", "--permits=2", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "leases of one holder only" in done.stderr


def test_a_short_run_with_permits_gets_no_hint_about_slots(store: str) -> None:
    assert incumbent("-s", store, "run", "job", "--permits=2", "--", "true").stderr == ""


# -- what operators see ----------------------------------------------------------------------------


@pytest.mark.usefixtures("two_of_three")
def test_status_names_every_holder_and_how_many_may(store: str) -> None:
    (line,) = incumbent("-s", store, "status").stdout.splitlines()[1:]
    assert re.match(r"api +held +(alice and bob|bob and alice) \(2 of 3 permits\)", line)
    one = incumbent("-s", store, "status", "api").stdout
    assert re.search(r"^state +held: 2 of 3 permits$", one, re.MULTILINE)
    for who in ("alice", "bob"):
        assert re.search(rf"^holder +{who}, token \d+, held for .*, ttl left ", one, re.MULTILINE)
    record = answer("-s", store, "status", "api")
    assert (record["state"], record["why"], record["permits"]) == ("held", "2 of 3 permits", 3)
    assert sorted(one["holder"] for one in record["holders"]) == ["alice", "bob"]
    assert all(0 < one["ttl_left"] <= one["ttl"] == 15 for one in record["holders"])


def test_status_counts_readers(store: str, client: Client) -> None:
    lock = client.read_write_lock("prices")
    with lock.read:
        assert "(1 reader)" in incumbent("-s", store, "status").stdout
        with lock.read.acquire(0):
            assert "held: 2 readers" in incumbent("-s", store, "status", "prices").stdout
    with lock.write:
        record = answer("-s", store, "status", "prices")
        assert (record["permits"], len(record["holders"])) == (None, 1)


def test_no_permit_of_several_is_handed_to_a_candidate_by_name(store: str, client: Client) -> None:
    alice, bob, carol = (
        client.election("feed", permits=2, holder=who) for who in ("alice", "bob", "carol")
    )
    terms = [alice.campaign(0), bob.campaign(0)]
    with pytest.raises(AcquireTimeout):
        carol.campaign(1)
    done = incumbent("-s", store, "resign", "feed", "--to", "carol")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "'feed' is a shared lease, and no holder can pass its part on to 'carol'" in done.stderr
    assert [term.renew() > 0 and term.release() for term in terms] == [True, True]


def test_many_holders_are_some_names_and_a_number(store: str, client: Client) -> None:
    with ExitStack() as stack:
        for number in range(12):
            one = client.semaphore("api", 12, holder=f"h{number}")
            stack.enter_context(one.acquire(0))
        shown = incumbent("-s", store, "status").stdout
        assert re.search(r"h\d+, h\d+, h\d+ and 9 more \(12 of 12 permits\)", shown)
        why = incumbent("-s", store, "why", "api").stdout
        assert "api: shared: 12 of 12 permits" in why
        assert "api: and 2 more holders: see `status api`" in why
        with pytest.raises(Exception, match=r"no permit left of 12: held by .* and 9 more"):
            client.semaphore("api", 12, timeout=0).acquire(0)
        with pytest.raises(Exception, match=r"'api' is held by .* and 9 more"):
            client.lock("api").acquire(0)


@pytest.mark.usefixtures("two_of_three")
def test_why_has_lines_of_each_holder(store: str) -> None:
    said = incumbent("-s", store, "why", "api").stdout
    assert said.splitlines()[0] == "api: shared: 2 of 3 permits"
    assert all(f"api: held by {who} for " in said for who in ("alice", "bob"))


@pytest.mark.usefixtures("two_of_three")
def test_wait_says_who_holds_it(store: str) -> None:
    done = incumbent("-s", store, "wait", "api", "--timeout", "2")
    assert done.returncode == BUSY
    assert re.search("held by (alice and bob|bob and alice)", done.stderr)


@pytest.mark.left(tiers.FORMS, "break")
@pytest.mark.parametrize("verb", ["pause", "break", "resign"])
def test_all_holders_are_asked_to_end(store: str, verb: str) -> None:
    words = ("-s", store, "run", "job", "--permits", "2", "--ttl", "8", "--grace", "0.1")
    with ExitStack() as stack:
        for who in ("one", "two"):
            it = stack.enter_context(
                start(*words, "--holder", who, "--", "sh", "-c", "echo; exec sleep 30")
            )
            stack.callback(it.terminate)
            assert it.stdout is not None
            assert it.stdout.readline() == "\n"
        said = incumbent("-s", store, verb, "job").stderr
        assert all(f"{who} has released it" in said for who in ("one", "two"))
    with Client(store) as client:
        assert client.read("job").holdings == ()
