"""A comparison with the recordings shows what is another request."""

from __future__ import annotations

from pathlib import Path
from struct import pack

import pytest

from tests.recorded.__main__ import ENGINES, path_of
from tests.recorded.normal import normal
from tests.recorded.recording import Recording, differences, merged, thin, unseen
from tests.recorded.wire import cut

CLAIM = "0123456789abcdef" * 2


@pytest.mark.parametrize("engine", ENGINES)
def test_a_recording_is_the_same_after_it_was_read_and_written(engine: str, tmp_path: Path) -> None:
    written = tmp_path / path_of(engine).name
    Recording.read(path_of(engine)).write(written)
    assert written.read_text() == path_of(engine).read_text()


@pytest.mark.parametrize("engine", ENGINES)
def test_few_cases_show_most_requests(engine: str) -> None:
    recording = Recording.read(path_of(engine))
    chosen = thin(recording)
    assert len(chosen) <= 40
    assert set(chosen) <= set(recording.cases)


# -- the comparison bites --------------------------------------------------------------------


def _recording(*requests: str) -> Recording:
    return merged([{"TestRedis a_case": set(requests)}])


def _differences(recording: Recording, *requests: str) -> dict[str, set[str]]:
    return differences(recording, {"TestRedis a_case": set(requests)}, recording.cases)


def test_the_same_requests_are_no_difference() -> None:
    assert _differences(_recording("GET a", "GET b"), "GET b", "GET a") == {}


def test_one_word_more_is_a_difference() -> None:
    found = _differences(_recording("SET a 1"), "SET a 1 NX")
    assert found == {"TestRedis a_case": {"- SET a 1", "+ SET a 1 NX"}}


def test_a_request_more_or_less_is_a_difference() -> None:
    assert _differences(_recording("GET a"), "GET a", "GET b") == {"TestRedis a_case": {"+ GET b"}}
    assert _differences(_recording("GET a", "GET b"), "GET b") == {"TestRedis a_case": {"- GET a"}}


def test_a_changed_script_is_one_difference_and_what_is_asked_of_it_another() -> None:
    before = _recording("EVALSHA <text 1> 1 a", "EVALSHA <text 1> 1 b", "EVALSHA <text 2> 1 a x")
    after = ("EVALSHA <text 9> 1 a", "EVALSHA <text 9> 1 b", "EVALSHA <text 2> 1 a x")
    assert _differences(before, *after) == {"": {"<text 1> is <text 9> now"}}
    found = _differences(before, *after[1:], "EVALSHA <text 9> 1 c")
    assert found["TestRedis a_case"] == {"- EVALSHA <text 9> 1 a", "+ EVALSHA <text 9> 1 c"}


def test_a_case_that_does_not_run_is_a_difference() -> None:
    recording = _recording("GET a")
    assert differences(recording, {}, recording.cases).keys() == {"TestRedis a_case"}


def test_what_only_some_runs_send_may_come_and_may_be_missing() -> None:
    recording = merged([{"TestRedis a": {"GET a", "PING"}}, {"TestRedis a": {"GET a"}}])
    for run in ({"GET a"}, {"GET a", "PING"}):
        assert differences(recording, {"TestRedis a": run}, recording.cases) == {}
    assert differences(recording, {"TestRedis a": {"PING"}}, recording.cases) != {}


def test_what_timing_decides_in_one_case_it_decides_in_all_but_somebody_sends_it() -> None:
    cases = [f"TestRedis {name}" for name in "abcde"]
    every = {case: {"GET a"} for case in cases}
    without: dict[str, set[str]] = {case: set() for case in cases}
    recording = merged([every, every | {"TestRedis a": set()}])
    assert differences(recording, without, cases) == {}
    assert unseen(recording, without, cases) == {"- GET a"}
    assert unseen(recording, without | {"TestRedis b": {"GET a"}}, cases) == set()


# -- what a wire says ------------------------------------------------------------------------


def _command(*words: bytes) -> bytes:
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%s" % (len(words), parts)


def test_commands_of_redis_are_read_however_a_script_was_sent() -> None:
    loaded = _command(b"SCRIPT", b"LOAD", b"return 1")
    by_text = _command(b"EVAL", b"return 1", b"1", b"a", b"")
    by_digest = _command(b"EVALSHA", b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db", b"1", b"a", b"")
    assert [*cut("redis", loaded + by_text)] == [*cut("redis", by_digest)]
    assert [*cut("redis", by_digest + b"*2\r\n$3\r\nGET")] == ["EVALSHA <text e0e1f9fabf> 1 a ''"]


def test_requests_to_etcd_are_read_with_what_is_in_base64() -> None:
    body = b'{"key":"L2E=","range_end":"","lease":"7"}'
    head = b"POST /v3/kv/range HTTP/1.1\r\nHost: h:1\r\nContent-Length: %d\r\n\r\n" % len(body)
    said = 'POST /v3/kv/range HTTP/1.1 {"key": "/a", "range_end": "", "lease": "7"}'
    assert [*cut("etcd", (head + body) * 2)] == [said, said]


def test_messages_to_postgresql_are_read_up_to_their_sync() -> None:
    def message(kind: bytes, body: bytes) -> bytes:
        return kind + pack("!I", len(body) + 4) + body

    parse = message(b"P", b"s\0SELECT f($1,  $2)\0\0\0")
    bind = message(b"B", b"\0s\0" + pack("!HHi", 0, 2, 1) + b"x" + pack("!iH", -1, 0))
    start = message(b"", pack("!I", 196608) + b"user\0me\0\0")
    assert [*cut("postgresql", start + parse + bind + message(b"S", b""))] == [
        "Startup user me",
        "Parse SELECT f($1, $2) Bind SELECT f($1, $2) ('x', NULL) Sync",
    ]


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (f"GET incumbent:{{contract-00c0ffee/job}} {CLAIM}", "GET incumbent:{<ns>/job} <claim>"),
        ("SET a 60000 86400000 1795352739817201", "SET a 60000 86400000 <number>"),
        (
            '{"revision": 12, "ttl": 1.5, "at": 1795352756.91}',
            '{"revision": <n>, "ttl": 1.5, "at": <instant>}',
        ),
        ("SUBSCRIBE incumbent:to:6fb04d3efa59", "SUBSCRIBE incumbent:to:<id>"),
        (
            'Authorization: Bearer x-Y_z {"metadata": {"name": "job", "resourceVersion": "7"}}',
            'Authorization: Bearer <token> {"metadata": {"name": "job"}}',
        ),
        (
            '{"incumbent/record": "1 00c0ffee {\\"at\\":1}", "leaseDurationSeconds": 15}',
            '{"incumbent/record": <record>, "leaseDurationSeconds": <left>}',
        ),
    ],
)
def test_what_differs_from_run_to_run_is_named(sent: str, shown: str) -> None:
    assert normal(sent) == shown
