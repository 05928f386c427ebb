"""The API server of the tests, judged by clients that others wrote.

Their imports take a second, so they are inside of `judges`.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest

from tests.stores.kubernetes.judges import JUDGES, Judge, Said
from tests.support.kubernetes import ApiServer


@pytest.fixture
def namespace(api_server: ApiServer) -> str:
    name = f"of-{secrets.token_hex(6)}"
    api_server.create_namespace(name)
    return name


@pytest.fixture(params=JUDGES)
def judge(
    request: pytest.FixtureRequest, api_server: ApiServer, namespace: str, tmp_path: Path
) -> Iterator[Judge]:
    made: Judge = request.param(api_server.kubeconfig(tmp_path / "config"), namespace)
    with closing(made):
        yield made


def test_a_client_creates_reads_and_deletes(judge: Judge) -> None:
    version = judge.create("a", "somebody")
    assert judge.read("a") == ("somebody", version)
    judge.delete("a")
    with pytest.raises(Said, match="404 NotFound"):
        judge.read("a")


def test_a_name_that_is_taken_is_refused(judge: Judge) -> None:
    judge.create("a", "somebody")
    with pytest.raises(Said, match="409 AlreadyExists"):
        judge.create("a", "another")


def test_of_two_replacements_of_one_version_the_second_is_a_conflict(judge: Judge) -> None:
    version = judge.create("a", "")
    newer = judge.replace("a", version, "first")
    with pytest.raises(Said, match="409 Conflict"):
        judge.replace("a", version, "second")
    assert judge.read("a") == ("first", newer)


def test_a_list_in_pages_is_whole_and_of_one_instant(judge: Judge) -> None:
    for name in "abcde":
        judge.create(name, "")
    found = judge.names(limit=2)
    first = list(islice(found, 2))
    judge.delete("c")  # while the list is read
    assert first + list(found) == ["a", "b", "c", "d", "e"]


def test_pages_of_a_list_that_was_compacted_away_are_refused(
    judge: Judge, api_server: ApiServer
) -> None:
    for name in "abc":
        judge.create(name, "")
    found = judge.names(limit=1)
    next(found)
    judge.delete("a")
    api_server.compact()
    with pytest.raises(Said, match="410 Expired"):
        list(found)


def test_a_watch_tells_every_change_in_its_order(judge: Judge, api_server: ApiServer) -> None:
    begun = str(api_server.revision())
    version = judge.create("a", "")
    judge.replace("a", version, "somebody")
    judge.create("b", "")
    judge.delete("a")
    told = list(islice(judge.watch(begun), 4))
    assert told == [("ADDED", "a"), ("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]


def test_a_watch_from_a_version_that_was_compacted_away_is_told_so(
    judge: Judge, api_server: ApiServer
) -> None:
    begun = str(api_server.revision())
    judge.create("a", "")
    judge.create("b", "")
    api_server.compact()
    with pytest.raises(Said, match="410"):
        next(judge.watch(begun))
