"""Answers in pieces of any size, and what is no answer of etcd's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.net.http import Garbled, Reading, parse
from incumbent.stores.etcd.site import EtcdSite, GatewayError, parse_etcd_url

PLAIN = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\nDate: now\r\n\r\n{"a": 1}'
CHUNKED = (
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"a"\r\n4;x=y\r\n: 1}\r\n0\r\n\r\n'
)
UNTIL_THE_END = b'HTTP/1.1 200 OK\r\n\r\n{"a": 1}'


TRAILED = CHUNKED + b"Grpc-Trailer-X: 1\r\nGrpc-Trailer-Y: 2\r\n\r\n"
TRAILED = TRAILED.replace(b"0\r\n\r\n", b"0\r\n")


@given(st.sampled_from([PLAIN, CHUNKED, TRAILED]), st.lists(st.integers(1, 100)))
def test_an_answer_may_come_in_any_pieces(answer: bytes, cuts: list[int]) -> None:
    reading, rest = Reading(), answer
    for cut in cuts:
        piece, rest = rest[:cut], rest[cut:]
        if piece:
            assert not reading.done
            reading.feed(piece)
    if rest:
        reading.feed(rest)
    assert (reading.done, reading.status, parse(reading.body)) == (True, 200, {"a": 1})


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    reading = Reading()
    reading.feed(UNTIL_THE_END)
    assert not reading.done
    assert reading.end()
    assert (reading.done, reading.last, reading.body) == (True, True, b'{"a": 1}')


@pytest.mark.parametrize("cut", [0, 20, len(PLAIN) - 1])
def test_half_an_answer_is_none(cut: int) -> None:
    reading = Reading()
    if cut:
        reading.feed(PLAIN[:cut])
    assert not reading.end()


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        PLAIN + b"x",
        CHUNKED.replace(b"4\r\n{", b"z\r\n{"),
        CHUNKED.replace(b"4\r\n{", b"-4\r\n{"),
        CHUNKED.replace(b"4\r\n{", b"0x4\r\n{"),
        CHUNKED.replace(b"4\r\n{", b"3\r\n{"),
        PLAIN.replace(b": 8", b": x8"),
        PLAIN.replace(b"Date: now", b"Content-Length: 7"),
        CHUNKED + PLAIN,
        CHUNKED.replace(b"\r\n\r\n4", b"\r\nContent-Length: 8\r\n\r\n4"),
        b"a" * 70_000,
    ],
)
def test_what_is_no_http_is_said_to_be_none(answer: bytes) -> None:
    with pytest.raises(Garbled):
        Reading().feed(answer)


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b"<html>"])
def test_what_is_no_json_object_is_no_answer(body: bytes) -> None:
    with pytest.raises(Garbled):
        parse(body)


def test_a_stream_gives_whole_messages_only() -> None:
    reading = Reading()
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    reading.feed(head + b'8\r\n{"a":1}\n\r\n3\r\n{"b\r\n')
    assert reading.lines() == [{"a": 1}]
    reading.feed(b'5\r\n":2}\n\r\n')
    assert reading.lines() == [{"b": 2}]


@pytest.mark.parametrize(
    ("text", "kind", "permanent"),
    [
        ("etcdserver: mvcc: database space exceeded", StoreUnavailable, False),
        ("etcdserver: permission denied", StoreUnavailable, True),
        ("etcdserver: authentication failed, invalid user ID or password", StoreUnavailable, True),
        ("etcdserver: no leader", StoreUnavailable, False),
        ("etcdserver: invalid auth token", StoreUnavailable, False),
        ("etcdserver: request timed out", OutcomeUnknown, False),
        ("etcdserver: leader changed", OutcomeUnknown, False),
        ("something new", OutcomeUnknown, False),
    ],
)
def test_only_what_is_known_not_to_be_carried_out_is_called_so(
    text: str, kind: type[StoreError], permanent: bool
) -> None:
    error, site = GatewayError(text), EtcdSite(parse_etcd_url("etcd://e1"))
    found = site.error_for(error, doubt=not error.not_done)
    assert (type(found), found.permanent) == (kind, permanent)
    site.served = True
    again = site.error_for(error, doubt=True)
    assert (type(again), again.permanent) == (OutcomeUnknown, False)
