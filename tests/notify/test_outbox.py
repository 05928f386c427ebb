"""An outbox against real receivers: bounded, in order, and never in its caller's way."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock, meters
from incumbent.notify import outbox as module
from incumbent.notify.outbox import Outbox, Post
from incumbent.notify.receivers import Receiver, Webhook, parse_receiver, parse_secrets
from tests.notify import listening as faults
from tests.notify.listening import SECRET, Listening, listening, nobody
from tests.support.etcd_tls import EtcdTls
from tests.support.waiting import eventually

SECRETS = parse_secrets(SECRET, "test")


class Said(list[str]):
    def __call__(self, *, to: str, why: str) -> None:
        self.append(f"{to}: {why}")


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def outbox(said: Said, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outbox]:
    """One whose pauses are short."""
    monkeypatch.setattr(module, "_BASE", 0.02)
    monkeypatch.setattr(module, "_CAP", 0.1)
    monkeypatch.setattr(module, "WITHIN", 60.0)
    monkeypatch.setattr(module, "_SAID_EVERY", 0.0)
    made = Outbox(said, lambda: SECRETS)
    yield made
    made.close(0.0)


def to(server: Listening | str, path: str = "/") -> Receiver:
    return parse_receiver(f"{server if isinstance(server, str) else server.url}{path}", "notify")


def put(outbox: Outbox, receiver: Receiver, what: str = "it", **facts: Any) -> None:
    outbox.put(receiver, what, lambda: Post(receiver, Webhook("test", clock.wall(), facts)))


def test_a_webhook_is_verified_by_the_reference_implementation(outbox: Outbox) -> None:
    with listening() as server:
        put(outbox, to(server), name="ä")
        (message,) = eventually(server.webhooks)
    assert (message["type"], message["data"]) == ("test", {"name": "ä"})


def test_a_retry_has_the_same_id_and_a_signature_of_its_own_instant(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    instants = count(2_000_000_000, 400)
    with listening("500", "503", "200") as server:
        monkeypatch.setattr(clock, "wall", lambda: float(next(instants)))
        put(outbox, to(server))
        eventually(lambda: len(server.requests) == 3)
    sent = [request.headers for request in server.requests]
    assert len({headers["webhook-id"] for headers in sent}) == 1
    assert len({headers["webhook-timestamp"] for headers in sent}) == 3
    assert len({headers["webhook-signature"] for headers in sent}) == 3


BAD = (faults.HANGS, faults.SLOW, faults.ENDLESS_HEAD, faults.GARBAGE, faults.CLOSES)


@pytest.mark.parametrize("fault", [*BAD, "500", "429", "408"])
def test_what_is_no_answer_is_tried_again(
    outbox: Outbox, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WITHIN", 1.0)
    with listening(fault, fault, "200") as server:
        put(outbox, to(server))
        put(outbox, to(server, "/second"))
        eventually(lambda: "/second" in server.paths())
    assert set(server.paths()[:3]) == {"/"}


@pytest.mark.parametrize("answer", ["204", faults.INTERIM, faults.ENDLESS_BODY])
def test_an_accepted_letter_is_sent_once(outbox: Outbox, answer: str) -> None:
    with listening(answer, "200") as server:
        put(outbox, to(server))
        put(outbox, to(server, "/second"))
        eventually(lambda: "/second" in server.paths())
    assert server.paths() == ["/", "/second"]


@pytest.mark.parametrize("status", ["400", "404", "410"])
def test_a_refusal_is_final(outbox: Outbox, said: Said, status: str) -> None:
    with listening(status, "200") as server:
        put(outbox, to(server, "/SECRET"), "failed of nightly")
        put(outbox, to(server, "/second"))
        eventually(lambda: "/second" in server.paths())
        assert server.paths() == ["/SECRET", "/second"]
    assert said == [
        f"127.0.0.1:{server.port}: failed of nightly was not sent: it answered {status}"
    ]


@pytest.mark.parametrize("status", ["301", "302", "307", "308"])
def test_a_redirect_is_not_followed(outbox: Outbox, said: Said, status: str) -> None:
    with (
        listening() as elsewhere,
        listening(status, "200", headers=f"Location: {elsewhere.url}/\r\n") as server,
    ):
        put(outbox, to(server))
        put(outbox, to(server, "/second"))
        eventually(lambda: "/second" in server.paths())
        assert not elsewhere.requests
    assert "it redirects" in said[0]


def test_retry_after_is_heeded(outbox: Outbox, said: Said) -> None:
    with listening("429", headers="Retry-After: 301\r\n") as server:
        put(outbox, to(server))
        eventually(lambda: said)
    assert said[0].endswith("it answered 429; again in 301s") or "again in 5" in said[0]


def test_the_order_to_one_host_is_kept_over_retries(outbox: Outbox) -> None:
    with listening("500", "500", "200") as server:
        for number in range(4):
            put(outbox, to(server, f"/{number}"))
        eventually(lambda: "/3" in server.paths())
    assert server.paths() == ["/0", "/0", "/0", "/1", "/2", "/3"]


def test_a_host_that_hangs_or_refuses_does_not_stop_the_others(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WITHIN", 1.0)
    with listening(faults.HANGS) as hanging, listening() as server:
        absent = nobody()
        for number in range(5):
            put(outbox, to(hanging))
            put(outbox, to(absent))
            put(outbox, to(server, f"/{number}"))
        eventually(lambda: "/4" in server.paths())


def test_more_letters_than_have_room_are_dropped_counted_and_said(
    outbox: Outbox, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    monkeypatch.setattr(meters, "on", True)
    dropped = _counted("dropped")
    with listening(faults.HANGS, "200") as server:
        for _ in range(10):
            put(outbox, to(server))
        server.over.set()
        eventually(lambda: [line for line in said if "7 dropped: 3 wait already" in line])
    assert _counted("dropped") >= dropped + 7


def _counted(outcome: str) -> float:
    samples = meters.counted()
    return sum(
        it.value
        for it in samples
        if it.metric == meters.NOTIFICATIONS and ("outcome", outcome) in it.labels
    )


def test_neither_put_nor_close_waits_for_a_receiver_that_hangs(outbox: Outbox, said: Said) -> None:
    with listening(faults.HANGS) as server:
        began = time.monotonic()
        for _ in range(20):
            put(outbox, to(server))
        eventually(lambda: server.requests)
        outbox.close(0.5)
        assert time.monotonic() - began < 30
    assert ": 20 not sent before the end" in said


def test_close_does_not_wait_for_a_pause_that_is_longer_than_it(outbox: Outbox) -> None:
    with listening("503", headers="Retry-After: 300\r\n") as server:
        put(outbox, to(server))
        eventually(lambda: server.requests)
        began = time.monotonic()
        outbox.close(60.0)
        assert time.monotonic() - began < 30


def test_close_sends_what_waits(outbox: Outbox) -> None:
    with listening() as server:
        for number in range(5):
            put(outbox, to(server, f"/{number}"))
        outbox.close(60.0)
        assert server.paths() == [f"/{number}" for number in range(5)]


def test_a_letter_has_a_bounded_number_of_tries(
    outbox: Outbox, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIES", 3)
    with listening("500", "500", "500", "200") as server:
        put(outbox, to(server))
        put(outbox, to(server, "/second"))
        eventually(lambda: "/second" in server.paths())
    assert server.paths() == ["/"] * 3 + ["/second"]
    assert said[-1].endswith("it was not sent: it answered 500, 3 times")


def test_a_letter_is_dropped_after_its_time(
    outbox: Outbox, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT", 0.5)
    put(outbox, to(nobody()))
    eventually(lambda: [line for line in said if "was not sent" in line])


def test_a_defect_in_what_is_to_be_said_stops_nothing_else(outbox: Outbox) -> None:
    def fail() -> Post:
        raise KeyError("a defect")

    with listening() as server:
        outbox.put(to(server), "it", fail)
        put(outbox, to(server, "/second"))
        eventually(lambda: server.paths() == ["/second"])


def test_what_has_nothing_to_say_is_not_sent(outbox: Outbox) -> None:
    with listening() as server:
        outbox.put(to(server), "it", lambda: None)
        put(outbox, to(server, "/second"))
        eventually(lambda: server.paths() == ["/second"])


# -- beats -----------------------------------------------------------------------------------------


def test_a_beat_comes_again_and_again_while_it_is_wanted(outbox: Outbox) -> None:
    with listening() as server:
        wanted = [True]
        outbox.beat(0.05, lambda: to(server, "/beat") if wanted[0] else None)
        eventually(lambda: len(server.requests) >= 3)
        wanted[0] = False
        put(outbox, to(server, "/after"))
        eventually(lambda: "/after" in server.paths())
        seen = len(server.requests)
        time.sleep(0.3)
        # One may have been on its way.
        assert len(server.requests) <= seen + 1


def test_a_beat_that_is_retried_is_asked_for_again(outbox: Outbox) -> None:
    """What was proved when it was due may be lost by then."""
    wanted = [True]
    with listening("500", "200") as server:

        def ping() -> Receiver | None:
            return to(server, "/beat") if wanted[0] and not server.requests else None

        outbox.beat(0.05, ping)
        eventually(lambda: server.requests)
        put(outbox, to(server, "/after"))
        eventually(lambda: "/after" in server.paths())
    assert server.paths() == ["/beat", "/after"]


def test_beats_that_begin_again_and_again_do_not_ping(outbox: Outbox) -> None:
    """Those of a command that crashes in a loop."""
    with listening() as server:
        for number in range(5):
            outbox.beat(60.0, lambda: to(server, "/beat"))
            put(outbox, to(server, f"/{number}"))
        eventually(lambda: "/4" in server.paths())
        assert "/beat" not in server.paths()


# -- TLS -------------------------------------------------------------------------------------------


def test_where_no_thread_is_to_be_had_the_caller_goes_on_and_the_next_letter_starts_one(
    outbox: Outbox, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_work: object, _name: str) -> None:
        raise RuntimeError("can't start new thread")

    with listening() as server:
        with monkeypatch.context() as patched:
            patched.setattr(module, "start_thread", refuse)
            put(outbox, to(server), "first", number=1)
        assert said == [": nothing is sent for now: can't start new thread"]
        put(outbox, to(server), "second", number=2)
        eventually(lambda: len(server.webhooks()) == 2)
    assert [message["data"]["number"] for message in server.webhooks()] == [1, 2]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> EtcdTls:
    return EtcdTls(tmp_path_factory.mktemp("tls"))


def secured(authority: EtcdTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.server.cert, authority.server.key)
    return context


def test_a_certificate_of_nobody_that_is_trusted_gets_nothing(
    outbox: Outbox, said: Said, authority: EtcdTls
) -> None:
    with listening(secured=secured(authority)) as server:
        put(outbox, to(server))
        eventually(lambda: said)
        assert not server.requests
    assert "CERTIFICATE_VERIFY_FAILED" in said[0]


def test_a_certificate_that_is_trusted_gets_the_message(
    outbox: Outbox, authority: EtcdTls, fresh_tls: Callable[[Path], None]
) -> None:
    fresh_tls(authority.ca)
    with listening(secured=secured(authority)) as server:
        put(outbox, to(server))
        assert eventually(server.webhooks)


@pytest.fixture
def fresh_tls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    from incumbent.net import tls

    def trust(authority: Path) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        tls._context.cache_clear()

    yield trust
    tls._context.cache_clear()
