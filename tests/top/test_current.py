"""A supervised command asks its supervisor; whatever is not a clear yes is a no."""

from __future__ import annotations

import json
import os
import pickle
import resource
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

import incumbent
from incumbent import CurrentLease, LeaseLost, Misuse, clock
from incumbent.locks.leases import Lease
from incumbent.locks.lock import Lock
from incumbent.net.dial import is_ready
from incumbent.supervise.launch import LeaseSocket
from tests.support.faulty import FaultyEngine
from tests.support.forks import exit_code, fork
from tests.support.needs import needs
from tests.support.pace import BUSY, lasted, took
from tests.support.waiting import eventually


@pytest.fixture
def lease() -> Iterator[Lease]:
    held = Lock("job", store=FaultyEngine(), holder="node-1").acquire()
    yield held
    if held.valid:
        held.release()


@contextmanager
def served(answers: LeaseSocket) -> Iterator[None]:
    """A supervisor's loop: answers whenever the socket is readable."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.is_set():
            if is_ready(answers.fd, writing=False, seconds=0.01):
                answers.ready()

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def asking(lease: Lease, path: str) -> CurrentLease:
    return CurrentLease(lease.name, lease.holder, lease.fencing_token, None, path)


@pytest.fixture
def inside(lease: Lease) -> Iterator[CurrentLease]:
    with LeaseSocket(lease) as answers, served(answers):
        yield asking(lease, answers.path)


def test_it_knows_what_the_supervisor_proves(inside: CurrentLease, lease: Lease) -> None:
    before = lease.remaining
    assert inside.valid
    assert not inside.lost
    assert before - 5 < inside.remaining <= lease._claim.wanted.policy.ttl
    inside.check(need=1)
    assert (inside.name, inside.holder, inside.term) == ("job", "node-1", lease.fencing_token)


def test_too_little_time_is_said_with_the_numbers(inside: CurrentLease) -> None:
    with pytest.raises(LeaseLost, match="left, 1h") as lost:
        inside.check(need=3600)
    assert lost.value.reason == "need"


def test_a_loss_is_told_with_its_reason_at_the_next_question(
    inside: CurrentLease, lease: Lease
) -> None:
    assert inside.valid
    lease._claim.machine.note_gone("taken")
    assert inside.lost
    assert inside.remaining == 0
    with pytest.raises(LeaseLost) as lost:
        inside.check()
    assert lost.value.reason == "taken"


def test_a_supervisor_that_does_not_answer_proves_nothing(lease: Lease) -> None:
    with LeaseSocket(lease) as answers:
        inside = asking(lease, answers.path)
        began = clock.now()
        assert not inside.valid
        assert lasted(began, 0.2, 0.25 + BUSY)
        with pytest.raises(LeaseLost, match=r"supervisor did not answer within 0\.25 s") as lost:
            inside.check()
    assert lost.value.reason == "expired"
    assert pickle.loads(pickle.dumps(lost.value)).reason == "expired"


@pytest.mark.parametrize("remaining", [4.0, 8.0])
def test_the_proof_counts_from_before_the_question(
    lease: Lease, monkeypatch: pytest.MonkeyPatch, remaining: float
) -> None:
    """The supervisor may have said it as soon as it was asked, however late its answer is read."""
    instant, took_to_answer = [clock.now()], 5.0

    def answer(path: str, until: float) -> bytes:
        instant[0] += took_to_answer
        facts = {"term": lease.fencing_token, "name": "job", "remaining": remaining, "lost": ""}
        return json.dumps(facts).encode()

    monkeypatch.setattr(clock, "now", lambda: instant[0])
    monkeypatch.setattr("incumbent.locks.inside._question", answer)
    inside = asking(lease, "unused")
    assert inside.remaining == pytest.approx(max(0.0, remaining - took_to_answer))
    assert inside.valid is (remaining > took_to_answer)
    with pytest.raises(LeaseLost):
        inside.check(need=remaining)


def test_a_socket_that_is_gone_proves_nothing(lease: Lease) -> None:
    with LeaseSocket(lease) as answers:
        inside = asking(lease, answers.path)
        folder = Path(answers.path).parent
    assert not folder.exists()
    assert not inside.valid
    with pytest.raises(LeaseLost, match="supervisor did not answer"):
        inside.check()


def test_a_killed_supervisors_socket_refuses(lease: Lease) -> None:
    with LeaseSocket(lease) as answers:
        answers._socket.close()
        assert Path(answers.path).exists()
        assert not asking(lease, answers.path).valid


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"nonsense\n",
        b"[]\n",
        b'{"name": "job"}\n',
        b'{"remaining": 9, "lost": "", "term": 1, "name": "job"',
        b'{"remaining": "x", "lost": "", "term": 1, "name": "job"}\n',
        b'{"remaining": NaN, "lost": "", "term": 1, "name": "job"}\n',
        b'{"remaining": 9, "lost": "", "term": 2, "name": "job"}\n',
        b'{"remaining": 9, "lost": "", "term": 1, "name": "other"}\n',
    ],
)
def test_any_other_answer_proves_nothing(tmp_path: Path, said: bytes) -> None:
    path = str(tmp_path / "s")
    with replying(path, lambda peer: peer.sendall(said)):
        assert not CurrentLease("job", "h", 1, None, path).valid
        with pytest.raises(LeaseLost):
            CurrentLease("job", "h", 1, None, path).check()


def test_an_answer_that_drips_counts_as_none(tmp_path: Path) -> None:
    path = str(tmp_path / "s")

    def drip(peer: socket.socket) -> None:
        for _ in range(100):
            peer.sendall(b" ")
            time.sleep(0.05)

    with replying(path, drip):
        began = clock.now()
        assert not CurrentLease("job", "h", 1, None, path).valid
        assert took(began) < 0.25 + BUSY


@contextmanager
def replying(path: str, reply: Callable[[socket.socket], None]) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(0.05)
        ended = threading.Event()

        def loop() -> None:
            while not ended.is_set():
                try:
                    peer = server.accept()[0]
                except TimeoutError:
                    continue
                with peer:
                    try:
                        reply(peer)
                    except OSError:
                        pass

        thread = threading.Thread(target=loop)
        thread.start()
        yield
        ended.set()
        thread.join()


def test_who_never_reads_makes_nobody_wait(lease: Lease) -> None:
    with LeaseSocket(lease) as answers:
        silent = []
        for _ in range(100):
            peer = socket.socket(socket.AF_UNIX)
            peer.connect(answers.path)
            silent.append(peer)
        began = clock.now()
        for _ in range(4):
            answers.ready()
        answers.ready()
        assert took(began) < BUSY
        for peer in silent:
            assert json.loads(peer.recv(4096))["term"] == lease.fencing_token
            peer.close()


def test_a_flood_of_questions_is_answered_in_portions(lease: Lease) -> None:
    with LeaseSocket(lease) as answers:
        peers = [socket.socket(socket.AF_UNIX) for _ in range(40)]
        for peer in peers:
            peer.connect(answers.path)
        answers.ready()
        assert is_ready(answers.fd, writing=False, seconds=0)
        answers.ready()
        assert not is_ready(answers.fd, writing=False, seconds=0)
        for peer in peers:
            peer.close()


def test_without_a_free_descriptor_the_loop_rests_and_answers_once_there_is_one(
    lease: Lease,
) -> None:
    with LeaseSocket(lease) as answers, socket.socket(socket.AF_UNIX) as peer, ExitStack() as undo:
        peer.connect(answers.path)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        undo.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (answers.fd + 20, hard))
        with suppress(OSError):
            while True:
                undo.callback(os.close, os.dup(answers.fd))
        began, turns = clock.now(), 0
        while clock.now() < began + 0.2:
            answers.ready()
            turns += 1
        assert 0 < turns < 50
        assert not is_ready(peer, writing=False, seconds=0)
        undo.close()
        answers.ready()
        assert json.loads(peer.recv(4096))["term"] == lease.fencing_token


def test_a_crowd_that_fills_the_backlog_is_waited_for(lease: Lease) -> None:
    with LeaseSocket(lease) as answers:
        answers._socket.listen(0)
        first = socket.socket(socket.AF_UNIX)
        first.connect(answers.path)
        found: list[bool] = []
        asker = threading.Thread(target=lambda: found.append(asking(lease, answers.path).valid))
        asker.start()
        with served(answers):
            asker.join()
        first.close()
    assert found == [True]


def test_an_answer_leaks_no_claim_and_another_user_may_ask(lease: Lease) -> None:
    with LeaseSocket(lease) as answers:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(answers.path)
            answers.ready()
            facts = json.loads(peer.recv(4096))
        assert set(facts) == {"name", "holder", "term", "slot", "remaining", "lost"}
        assert lease._claim.id not in json.dumps(facts)
        folder = Path(answers.path).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o711
        assert stat.S_IMODE(Path(answers.path).stat().st_mode) == 0o666


def test_a_folder_too_long_for_a_socket_is_passed_over(
    lease: Lease, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    with LeaseSocket(lease) as answers:
        assert len(answers.path) < 100


def test_outside_of_a_supervised_command_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key in list(os.environ):
        if key.startswith("INCUMBENT_LEASE_"):
            monkeypatch.delenv(key)
    with pytest.raises(Misuse, match=r"incumbent\.Lock"):
        incumbent.current()


CHILD = """
import os, sys
import incumbent
incumbent.current().check(need=1)
if os.fork() == 0:
    if os.fork() == 0:
        lease = incumbent.current()
        print(lease.name, lease.holder, lease.term, lease.slot, lease.valid, flush=True)
        os._exit(0)
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def environment(lease: Lease, path: str) -> dict[str, str]:
    return {
        **os.environ,
        "INCUMBENT_LEASE_NAME": lease.name,
        "INCUMBENT_LEASE_HOLDER": lease.holder,
        "INCUMBENT_LEASE_TERM": str(lease.fencing_token),
        "INCUMBENT_LEASE_SLOT": "nightly",
        "INCUMBENT_LEASE_SOCKET": path,
    }


def test_a_child_of_the_commands_child_may_ask_as_well(lease: Lease) -> None:
    with LeaseSocket(lease) as answers, served(answers):
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            env=environment(lease, answers.path),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.stdout == f"job node-1 {lease.fencing_token} nightly True\n", done.stderr
    assert done.returncode == 0


@needs(os.geteuid() == 0, "only root can become another user")
def test_another_user_really_gets_an_answer(lease: Lease) -> None:
    with LeaseSocket(lease) as answers:

        def ask() -> int:
            os.setgid(65534)
            os.setuid(65534)
            return 0 if asking(lease, answers.path).valid else 2

        child = fork(ask)
        eventually(lambda: is_ready(answers.fd, writing=False, seconds=0))
        answers.ready()
        assert exit_code(child) == 0
