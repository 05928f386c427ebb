"""What a read makes of the server's replies, each of which may be an error of its own."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest

from incumbent.errors import StoreError
from incumbent.model import Key, Record
from incumbent.stores.redis.put_read import read_program
from incumbent.stores.redis.records import FIELDS, Naming
from incumbent.stores.redis.site import Packer

TIME = [b"1000", b"0"]
LEASE = b"incumbent1 c 5 0 1000000 15000 me "
MOVED_AWAY = hiredis.ReplyError("ASK 99 127.0.0.1:7001")
USED_SLOT = [FIELDS["holding"] + b"0", b"5 1000000 monday me"]
# As a cluster's server replies that has given one of the keys away, and not yet the other.
REPLIES: dict[str, list[Any]] = {
    "the lease": [MOVED_AWAY, -2, [], []],
    "how long it lasts": [LEASE, MOVED_AWAY, [], []],
    "the record": [LEASE, 9000, MOVED_AWAY, []],
}


def read(*replies: list[Any]) -> Record:
    running = read_program(Packer(Naming(None), "here"), Key("n", "a"))
    next(running)
    try:
        for reply in replies:
            running.send(reply)
    except StopIteration as end:
        record: Record = end.value
        return record
    raise AssertionError("it asked for more")


@pytest.mark.parametrize("what", REPLIES)
def test_a_reply_that_is_an_error_is_one_of_the_store(what: str) -> None:
    with pytest.raises(StoreError, match="moving to another node"):
        read([TIME, *REPLIES[what]])


def test_so_is_one_about_a_used_slot() -> None:
    assert read([TIME, LEASE, 9000, USED_SLOT, []], [500]).slots == {"monday": 0.5}
    with pytest.raises(StoreError, match="moving to another node"):
        read([TIME, LEASE, 9000, USED_SLOT, []], [MOVED_AWAY])


def test_a_record_without_its_candidates_is_shown_all_the_same() -> None:
    assert read([TIME, LEASE, 9000, [], MOVED_AWAY]).holdings[0].holder == "me"
