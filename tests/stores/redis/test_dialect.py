"""What is said to a Redis server and how its answers are read, without one."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Ask, Granted, Key, Renewal
from incumbent.net.pool import Mismatch
from incumbent.stores.redis.give import give_request
from incumbent.stores.redis.incarnation import read_facts
from incumbent.stores.redis.records import Naming, digest_of, quoted, read_value
from incumbent.stores.redis.renew import renew_program
from incumbent.stores.redis.resp import SCRIPTS, as_eval, pack
from incumbent.stores.redis.site import Outdated, Packer, answered_error
from incumbent.stores.redis.take import read_take, take_request

KEY = Key("default", "job")
ASK = Ask(1.5, "host 1")
names = st.text("abc.:/@-_", min_size=1, max_size=8).filter(lambda name: ".." not in name)
namespaces = st.text("abc.-_", min_size=1, max_size=5)


SIGN = b"abcdef12 0"


def packer(template: str | None = None) -> Packer:
    return Packer(Naming(template), "redis://here")


def parts_of(request: bytes) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(request)
    parts: list[bytes] = reader.gets()
    assert reader.gets() is False, "more than one request"
    return parts


# -- requests


def test_a_take_names_its_keys_and_its_claim() -> None:
    parts = parts_of(take_request(packer(), KEY, "c1aim", ASK, SIGN, 1700000000.25))
    assert parts[:3] == [b"EVALSHA", SCRIPTS["take"].sha, b"2"]
    assert parts[3:5] == [b"incumbent:{default/job}", b"incumbent:{default/job}:r"]
    assert parts[5:] == [
        b"incumbent1 c1aim ",
        b" 1500 host%201 ",
        b"1500",
        b"86400000 abcdef12 0",
        b" - host%201",
        b"1700000000250000",
    ]


def test_equal_questions_at_one_address_are_not_confused() -> None:
    # Prepared pieces are kept by identity; an object's address may be used again by another.
    asked = packer()
    for ttl in range(1, 600):
        assert b"%d" % (ttl * 1000) in parts_of(
            take_request(asked, KEY, "c", Ask(float(ttl), "h"), SIGN, 1.0)
        )


def test_a_ttl_is_rounded_up() -> None:
    assert parts_of(take_request(packer(), KEY, "c", Ask(0.1234, "h"), SIGN, 1.0))[7] == b"124"


def test_a_take_names_the_incarnation_that_its_connection_knows() -> None:
    asked = packer()
    for sign in (SIGN, b"12345678 99", SIGN):
        parts = parts_of(take_request(asked, KEY, "c", ASK, sign, 1.0))
        assert parts[8] == b"86400000 " + sign


def test_an_instant_long_ago_has_as_many_digits_as_one_of_today() -> None:
    assert parts_of(take_request(packer(), KEY, "c", ASK, SIGN, 5.0))[-1] == b"0000000005000000"


def test_a_give_names_the_token_it_gives_back() -> None:
    parts = parts_of(give_request(packer(), KEY, "c1aim", 77))
    assert parts[6:] == [b"incumbent1 c1aim 77 ", b"incumbent:{default/job}:c"]


def test_a_script_can_be_sent_whole() -> None:
    request = take_request(packer(), KEY, "c", ASK, SIGN, 1.0)
    whole = parts_of(as_eval(request))
    assert whole[:2] == [b"EVAL", SCRIPTS["take"].text]
    assert whole[2:] == parts_of(request)[2:]


def test_metadata_that_looks_like_a_call_is_sent_as_it_is() -> None:
    meta = SCRIPTS["take"].call(0)
    asked = packer()
    request = take_request(asked, KEY, "c", replace(ASK, meta=meta), SIGN, 1.0)
    pair = as_eval(request + request)
    whole = as_eval(request)
    assert pair == whole + whole
    assert any(meta in part for part in parts_of(whole)[3:])


def test_many_renewals_go_in_bounded_batches() -> None:
    renewals = [Renewal(KEY, "c", at, 1.0, "now") for at in range(1200)]
    program = renew_program(packer(), renewals, "now")
    step = next(program)
    assert step.answers == step.payload.count(b"EVALSHA") == 3


def test_leases_of_another_incarnation_are_gone_without_asking() -> None:
    program = renew_program(packer(), [Renewal(KEY, "c", 1, 1.0, "before")], "now")
    with pytest.raises(StopIteration) as end:
        next(program)
    assert [outcome.reason for outcome in end.value.value] == ["store_restarted"]


# -- answers


def test_a_grant_is_read() -> None:
    granted = read_take(packer(), b"incumbent1 c 42", KEY, "c", ASK, "epoch")
    assert granted == Granted("c", 42, 1.5, "epoch")


@pytest.mark.parametrize(
    "answer",
    [
        *(b"incumbent1 d 42", b"OK", b"", b"incumbent1 c d 42", [b"incumbent1 d 42", 5]),
        *(None, [b"held"], [b"held", None, 1, b"1"], True),
    ],
)
def test_an_answer_to_another_request_is_never_a_grant(answer: object) -> None:
    with pytest.raises((Mismatch, OutcomeUnknown)):
        read_take(packer(), answer, KEY, "c", ASK, "epoch")


def test_a_repeated_take_counts_what_the_record_has_left() -> None:
    granted = read_take(packer(), [b"incumbent1 c 42", 1700], KEY, "c", ASK, "epoch")
    assert granted == Granted("c", 42, 1.7, "epoch")


def test_a_grant_that_has_to_be_looked_at_is_read() -> None:
    granted = read_take(packer(), [b"incumbent1 c 42"], KEY, "c", ASK, "epoch")
    assert granted == Granted("c", 42, 1.5, "epoch")


def test_a_take_that_came_too_late_was_certainly_not_applied() -> None:
    with pytest.raises(Outdated) as caught:
        read_take(packer(), 0, KEY, "c", ASK, "epoch")
    assert not caught.value.sent


def test_a_record_of_another_format_is_refused_with_what_to_do() -> None:
    raw = b"incumbent2 c1aim 5 0 1 1 h meta"
    with pytest.raises(StoreUnavailable, match=r"format 2 .* format 1: stop") as caught:
        read_take(packer(), [b"held", raw, 1000, b"1700000000000000"], KEY, "c", ASK, "epoch")
    assert caught.value.permanent
    assert "c1aim" not in str(caught.value)


def test_an_answer_to_another_renewal_is_never_a_renewal() -> None:
    program = renew_program(packer(), [Renewal(KEY, "c", 1, 1.0, "now")], "now")
    next(program)
    with pytest.raises(Mismatch):
        program.send([[b"d:0", 1]])


@pytest.mark.parametrize(
    ("answer", "certain", "permanent"),
    [
        ("LOADING Redis is loading the dataset in memory", True, False),
        ("MASTERDOWN Link with MASTER is down", True, False),
        ("READONLY You can't write against a read only replica.", True, False),
        ("BUSY Redis is busy running a script.", True, False),
        ("OOM command not allowed when used memory > 'maxmemory'.", True, False),
        ("NOREPLICAS Not enough good replicas to write.", True, False),
        ("MISCONF Redis is configured to save RDB snapshots", True, False),
        ("CLUSTERDOWN The cluster is down", True, False),
        ("WRONGTYPE Operation against a key", True, True),
        ("NOPERM this user has no permissions to run the 'evalsha' command", True, False),
        ("NOPERM no permissions script: 1, on @user_script:3.", False, False),
        ("ERR Error running script (f_1): @user_script:4: WRONGTYPE Operation", True, True),
        ("ERR something else", False, False),
    ],
)
def test_errors_say_whether_anything_was_done(answer: str, certain: bool, permanent: bool) -> None:
    error = answered_error(answer, "redis://here", "the:key")
    assert isinstance(error, StoreUnavailable if certain else OutcomeUnknown)
    assert error.permanent is permanent


def test_a_login_that_fails_is_final_only_before_it_ever_worked() -> None:
    answer = "WRONGPASS invalid username-password pair"
    assert answered_error(answer, "x", served=False).permanent
    assert not answered_error(answer, "x", served=True).permanent


def test_a_wrong_type_names_the_key() -> None:
    assert "the:key" in str(answered_error("WRONGTYPE Operation", "redis://here", "the:key"))


# -- names and values


@given(st.sets(st.tuples(namespaces, names), min_size=2, max_size=2))
def test_no_two_leases_share_a_key(pair: set[tuple[str, str]]) -> None:
    naming = Naming(None)
    found: set[str] = set()
    for namespace, name in pair:
        of = naming.of(Key(namespace, name))
        found |= {of.lease, of.record, of.channel, of.slot("x")}
    assert len(found) == 8


@given(namespaces, names, st.sampled_from([None, "lock:{name}", "{namespace}/l/{name}.lock"]))
def test_a_key_found_on_the_server_leads_back_to_its_lease(
    namespace: str, name: str, template: str | None
) -> None:
    naming, key = Naming(template), Key(namespace, name)
    of = naming.of(key)
    for found in (of.lease, of.record, of.slot("2026-01-01T00:00")):
        assert naming.key_of(found, namespace) == key
    assert naming.key_of(of.sharers, namespace) is None


@pytest.mark.parametrize("template", [None, "lock:{name}"])
def test_a_scan_finds_each_key_that_shows_a_lease(template: str | None) -> None:
    naming = Naming(template)
    of = naming.of(Key("default", "job"))
    patterns = [pattern.replace("{", "[{]") for pattern in naming.patterns("default", "j")]
    keys = (of.lease, of.record, of.candidates, of.line, of.slot("x"))
    assert [key for key in keys if not any(fnmatchcase(key, each) for each in patterns)] == []


def test_with_a_shared_key_the_companions_carry_all_of_it() -> None:
    of = Naming("lock:{name}").of(KEY)
    assert (of.lease, of.record) == ("lock:job", "incumbent:{lock:job}:r")


@given(st.text(max_size=20))
def test_a_holder_survives_its_way_through_a_value(holder: str) -> None:
    raw = f"incumbent1 c 5 0 1700000000000000 1500 {quoted(holder)} ".encode() + b"a b\n\0"
    value = read_value(raw)
    assert value is not None
    assert (value.holder, value.meta, value.ttl) == (holder, b"a b\n\0", 1.5)


@pytest.mark.parametrize("raw", [b"", b"x", b"incumbent3 c 5 0 1 1 h ", b"incumbent1 c 5"])
def test_any_other_value_is_a_foreign_clients(raw: bytes) -> None:
    assert read_value(raw) is None


def test_a_mark_does_not_give_the_claim_away_and_tells_another_meta() -> None:
    before = b"incumbent1 c1aim 5 0 1 1 h meta"
    assert digest_of(before) == digest_of(bytes(before))
    assert digest_of(before) != digest_of(before + b" more")
    assert "c1aim" not in digest_of(before)
    assert digest_of(before) != digest_of(before.replace(b" 5 ", b" 6 "))


def test_the_uptime_counts_for_a_second_less_than_the_server_says() -> None:
    facts = read_facts(b"# Server\r\nrun_id:abc\r\nuptime_in_seconds:10\r\n")
    assert facts.run == "abc"
    assert facts.born(received=100.0) == 91.0


def test_requests_carry_any_bytes() -> None:
    assert parts_of(pack(b"a\r\n", "\u00e9", 5)) == [b"a\r\n", "\u00e9".encode(), b"5"]
