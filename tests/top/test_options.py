"""The settings of a lock: what cannot work is refused before anything is sent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from incumbent import Client, ConfigError, Lock, Policy
from incumbent.locks.options import lease_request
from incumbent.model import Capabilities
from incumbent.runtime.link import link_for
from incumbent.stores.url import store_url

CAN = Capabilities()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ttl": 0}, "ttl=0 is out of range"),
        ({"ttl": -1}, "out of range"),
        ({"ttl": float("nan")}, "out of range"),
        ({"ttl": float("inf")}, "out of range"),
        ({"ttl": 1e30}, "out of range"),
        ({"ttl": 10**400}, "out of range"),
        ({"ttl": True}, "not a duration"),
        ({"ttl": None}, "not a duration"),
        ({"ttl": "soon"}, "not a duration"),
        ({"ttl": 0.12}, "too short"),
        ({"ttl": 15, "grace": 14}, "leaves"),
        ({"policy": "15s"}, "policy: a Policy, not str"),
        ({"policy": Policy(5), "ttl": 5}, "policy sets ttl and grace too"),
        ({"policy": Policy(5), "grace": 1}, "policy sets ttl and grace too"),
        ({"policy": Policy(5), "lock_delay": 1}, "policy sets lock_delay too"),
        ({"holder": "a b"}, "holder"),
        ({"holder": ""}, "holder"),
        ({"holder": 5}, "holder: a text, not int"),
        ({"slot": "2026-11-21"}, "slot: needs once_per"),
        ({"slot": "once", "once_per": "1h"}, "printable characters"),
        ({"slot": " a", "once_per": "1h"}, "slot=.* a.*: 1 to 200 printable"),
        ({"slot": "a\nb", "once_per": "1h"}, "printable characters"),
        ({"holder": "x" * 201}, "holder"),
        ({"meta": b"x"}, "unknown setting 'meta'"),
        ({"renew_every": 5}, "unknown setting 'renew_every'"),
        ({"at_least_for": 10, "at_most_for": 5}, "longer than"),
        ({"at_most_for": 0}, "at_most_for"),
        ({"once_per": "0s"}, "once_per"),
        ({"if_lost": "shrug"}, "if_lost"),
        ({"fair": True}, "keeps no line of waiters"),
        ({"time_to_live": 5}, "unknown setting 'time_to_live'"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_and_named(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        lease_request("default", "a", CAN, **settings)


def test_a_policy_says_all_times_and_those_of_a_lock_go_before_those_of_its_client() -> None:
    policy = Policy("30s", grace="2s", request_timeout="500ms")
    assert Lock("a", store="memory:", policy=policy)._wanted.policy is policy
    with Client("memory:", policy=policy) as client:
        assert client.lock("a", grace=None)._wanted.policy is policy
        assert client.lock("a", ttl=9)._wanted.policy == Policy(9)
    with Client("memory:", ttl=9, grace=1) as client:
        assert client.election("a", policy=policy)._wanted.policy is policy


@pytest.mark.parametrize("name", ["", "a b", "a..b", "a\n", "a\0", "ä", "x" * 201, "{a}", None, 5])
def test_a_name_outside_the_alphabet_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="not a name"):
        Lock(name, store="memory:")


def test_a_namespace_has_no_slash() -> None:
    with pytest.raises(ConfigError, match="not a namespace"):
        Lock("a", store="memory:", namespace="a/b")


def test_what_the_store_cannot_do_is_refused_when_the_lock_is_built() -> None:
    coarse = Capabilities(ttl_min=2, ttl_max=60, slots=False)
    for settings, said in (({"ttl": 1}, "this store takes 2s to"), ({"once_per": 5}, "slots")):
        with pytest.raises(ConfigError, match=said):
            lease_request("default", "a", coarse, **settings)  # type: ignore[arg-type]


def test_a_job_is_remembered_longer_than_a_lock() -> None:
    lock = lease_request("default", "a", CAN)
    job = lease_request("default", "a", CAN, once_per="12h")
    assert job.unqueued.keep_record > lock.unqueued.keep_record


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("localhost", "not the URL of a store"),
        ("nosuch://x", "not the scheme of a known store"),
        ("withheld:", "withheld"),
        (object(), "give a URL"),
    ],
)
def test_what_is_no_store_is_refused(store: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        link_for(store)


def test_the_environment_names_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("INCUMBENT_STORE", "memory:env")
    assert store_url() == "memory:env"
    monkeypatch.delenv("INCUMBENT_STORE")
    (tmp_path / "url").write_text("memory:file\n")
    monkeypatch.setenv("INCUMBENT_STORE_FILE", str(tmp_path / "url"))
    assert store_url() == "memory:file"
    monkeypatch.setenv("INCUMBENT_STORE_FILE", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="cannot be read"):
        store_url()


@pytest.mark.parametrize("variable", ["INCUMBENT_STORE_FILE", "INCUMBENT_STORE_PASSWORD_FILE"])
def test_a_store_that_is_named_and_empty_is_not_the_file_of_this_host(
    variable: str, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(ConfigError, match="--store is empty"):
        store_url("", {})
    with pytest.raises(ConfigError, match="INCUMBENT_STORE is empty"):
        store_url(None, {"INCUMBENT_STORE": " "})
    with pytest.raises(ConfigError, match=f"{variable}=.*empty is empty"):
        store_url("redis://h" if "PASSWORD" in variable else None, {variable: str(empty)})


def test_one_url_has_one_link_in_a_process() -> None:
    assert link_for("memory:same") is link_for("memory:same")


def test_a_fair_lock_of_a_store_without_lines_fails_when_it_is_built() -> None:
    with pytest.raises(ConfigError, match="keeps no line of waiters") as caught:
        Lock("a", store="redis+quorum://a,b,c", fair=True)
    assert caught.value.name == "fair"


def test_a_job_that_runs_once_is_not_fair() -> None:
    can = replace(CAN, queue=True)
    with pytest.raises(ConfigError, match="decided by the slot"):
        lease_request("default", "a", can, once_per="12h", fair=True)
    assert lease_request("default", "a", can, once_per="12h").queued.queue is None


def test_who_waits_stands_in_line_where_the_store_keeps_one() -> None:
    wanted = lease_request("default", "a", replace(CAN, queue=True), ttl=15, fair=True)
    assert wanted.unqueued.queue is None
    queue = wanted.queued.queue
    assert queue is not None
    assert (queue.fair, queue.heartbeat) == (True, 5.0)
    assert lease_request("default", "a", CAN).queued.queue is None
