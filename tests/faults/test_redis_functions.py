"""`doctor` says whether a store's functions are loaded, and `doctor --fix` loads them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import hiredis
import pytest
import redis

from incumbent.errors import StoreUnavailable
from incumbent.model import Batch, Released, Renewal, Renewed
from incumbent.stores.redis.doctor import load_functions, look_at_functions
from incumbent.stores.redis.functions import LIBRARY, LIBRARY_NAME
from tests.cli.tool import incumbent
from tests.faults.redis_world import new_claim, own_party, party, soon
from tests.faults.test_redis_acl import rule
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

OTHERS = LIBRARY.replace(LIBRARY_NAME.rpartition("_")[2], "00c0ffee")
"""As another release has it, of which some scripts are the same."""
CALLS = "restart_wait=0&functions=yes"


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    with RedisServer() as running:
        for name, more in {
            "caller": (),
            "incumbent": (),
            "loader": ("+function|load",),
            "lister": ("+function|list", "-fcall"),
        }.items():
            rights = rule("incumbent" if name == "incumbent" else "caller")
            assert running.cli("ACL", "SETUSER", name, *rights, *more) == "OK"
        yield running


@pytest.fixture
def server(shared: RedisServer) -> RedisServer:
    shared.cli("FUNCTION", "FLUSH")
    return shared


def as_user(server: RedisServer, name: str) -> str:
    return f"redis://{name}:secret@127.0.0.1:{server.port}"


Findings = list[tuple[str, str, str]]


def doctor(url: str, *more: str) -> tuple[int, Findings]:
    """Its exit code, and what it says of functions."""
    done = incumbent("-s", url, "doctor", "--json", *more)
    found: list[Mapping[str, str]] = json.loads(done.stdout)
    said = [(it["level"], it["what"], it["advice"]) for it in found]
    return done.returncode, _of_functions(said)


def _of_functions(found: Findings) -> Findings:
    return [it for it in found if "function" in str(it)]


def looked_at(url: str, options: str = CALLS) -> Findings:
    """What the doctor finds, without starting it."""
    with party(url, options) as one:
        return _of_functions(one.engine.diagnose(15.0, soon()))


def fixed(url: str, options: str = CALLS) -> Findings:
    """What comes of --fix."""
    with party(url, options) as one:
        return one.engine.fix(soon())


def libraries(server: RedisServer) -> int:
    return int(server.cli("FUNCTION", "LIST"))


# -- one server


def test_the_doctor_misses_functions_and_an_administrator_loads_them(server: RedisServer) -> None:
    url, users = f"{server.url}?{CALLS}", f"{as_user(server, 'caller')}?{CALLS}"
    code, ((level, what, todo),) = doctor(users)
    assert (code, level) == (69, "error")
    assert "not loaded" in what
    assert "doctor --fix" in todo
    code, (made, found) = doctor(url, "--fix")
    assert (code, made[0], found[0]) == (0, "ok", "ok")
    assert "now loaded" in made[1]
    # Who may only call them can tell all the same, and need not load them again.
    code, again = doctor(users, "--fix")
    assert (code, {level for level, _, _ in again}) == (0, {"ok"})
    done = incumbent("-s", users, "run", "job", "--", "echo", "it ran")
    assert (done.returncode, done.stdout) == (0, "it ran\n"), done.stderr


def test_a_take_without_functions_says_how_to_get_them(server: RedisServer) -> None:
    missed = pytest.raises(StoreUnavailable, match=r"lacks our functions.* --fix")
    with party(as_user(server, "caller"), CALLS) as one, missed:
        one.take()


def test_the_login_of_an_administrator_needs_no_option_for_it(server: RedisServer) -> None:
    ((level, *_),) = fixed(server.url, "restart_wait=0")
    assert (level, libraries(server)) == ("ok", 1)


@pytest.mark.parametrize("needed", [True, False])
def test_a_missing_right_to_load_is_named(server: RedisServer, needed: bool) -> None:
    user, options = ("caller", CALLS) if needed else ("incumbent", "restart_wait=0")
    ((level, what, todo),) = fixed(as_user(server, user), options)
    assert level == ("error" if needed else "warning")
    assert "+function|load" in what
    assert "administrator" in todo
    assert libraries(server) == 0


def test_a_missing_right_to_load_is_an_exit_code_of_its_own(server: RedisServer) -> None:
    code, _ = doctor(f"{as_user(server, 'caller')}?{CALLS}", "--fix")
    assert code == 69


def test_a_right_to_load_is_enough_to_fix(server: RedisServer) -> None:
    ((level, *_),) = fixed(as_user(server, "loader"))
    assert (level, libraries(server)) == ("ok", 1)


def test_a_client_of_ones_own_calls_functions_too(server: RedisServer) -> None:
    client = redis.Redis(port=server.port, username="caller", password="secret")
    one = own_party(client, restart_wait=0, functions=True)
    with pytest.raises(StoreUnavailable, match="lacks our functions"):
        one.take()
    assert fixed(server.url)[0][0] == "ok"
    one.take()
    one.store.close()


def test_a_server_out_of_memory_renews_and_lets_go_by_functions_too(own_redis: RedisServer) -> None:
    with party(own_redis.url, CALLS) as one:
        one.engine.fix(soon())
        granted = one.take()
        own_redis.cli("CONFIG", "SET", "maxmemory", "1")
        renewal = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)
        assert one.store.renew([renewal], soon()) == [Renewed()]
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
        with pytest.raises(StoreUnavailable, match="OOM"):
            one.take(new_claim())


def test_a_missing_right_to_call_is_named(server: RedisServer) -> None:
    server.cli("FUNCTION", "LOAD", LIBRARY)
    there, (level, what, todo) = looked_at(as_user(server, "lister"))
    assert (there[0], level) == ("ok", "error")
    assert "+fcall" in what
    assert "least privilege" in todo


def test_functions_of_another_release_are_no_substitute_and_stay(server: RedisServer) -> None:
    server.cli("FUNCTION", "LOAD", OTHERS)
    ((level, what, _),) = looked_at(server.url)
    assert level == "error"
    assert "another release" in what
    assert "incumbent_00c0ffee" in what
    ((level, *_),) = looked_at(server.url, "")
    assert level == "warning"
    ((level, *_),) = fixed(server.url)
    assert (level, libraries(server)) == ("ok", 2)
    assert [it[0] for it in looked_at(server.url)] == ["ok"]
    # The others call theirs as before.
    assert server.cli("FCALL", "incumbent_renew_00c0ffee", "0", "echo", "1") == "1"


def test_a_server_that_is_not_there_is_not_fixed() -> None:
    ((level, what, _),) = fixed("redis://127.0.0.1:1")
    assert (level, "cannot be reached" in what) == ("error", True)


# -- more than one


def test_all_masters_of_a_cluster_get_them_and_the_others_when_one_is_silent() -> None:
    with RedisCluster() as cluster, party(cluster.url, CALLS) as one:
        lost = cluster.nodes[1]
        lost.freeze()
        try:
            found = one.engine.fix(soon(1.5))
        finally:
            lost.thaw()
        (silent,) = [what for level, what, _ in found if level == "error"]
        assert silent.startswith(lost.address)
        loaded = [libraries(node) for node in cluster.nodes]
        assert loaded == [1, 0, 1]
        (before,) = [what for level, what, _ in looked_at(cluster.url) if level == "error"]
        assert before.startswith(f"{lost.address}: the functions")
        assert not [it for it in one.engine.fix(soon()) if it[0] == "error"]
        assert not [it for it in one.engine.diagnose(15.0, soon()) if it[0] == "error"]
        renewals = []
        for number in range(10):
            one.key = one.key._replace(name=f"job-{number}")
            granted = one.take(new_claim())
            renewals.append(Renewal(one.key, granted.claim, granted.token, 10.0, granted.epoch))
        assert one.store.renew(Batch(renewals), soon()) == [Renewed()] * 10


def test_the_master_behind_sentinels_gets_them_and_its_replica_too() -> None:
    with Sentinels(replicas=1, down_after=20.0) as sentinels:
        with party(sentinels.url, CALLS) as one:
            found = one.engine.fix(soon())
            assert [level for level, _, _ in found] == ["ok", "ok"]
            one.take()
            assert "ok" in {
                it[0] for it in one.engine.diagnose(15.0, soon()) if "functions" in it[1]
            }
        eventually(lambda: [libraries(node.server) for node in sentinels.nodes] == [1, 1])


# -- what a server may answer


def answered(answers: list[list[Any]], *, fix: bool, needed: bool = True) -> list[Any]:
    program = (load_functions if fix else look_at_functions)(needed=needed)
    next(program)
    try:
        for each in answers:
            program.send(each)
    except StopIteration as end:
        return list(end.value)
    raise AssertionError("it asks for more")


def refusal(text: str) -> Exception:
    return hiredis.ReplyError(text)


UNKNOWN = "ERR unknown command 'FCALL'"
NO = "NOPERM this user has no permissions to run the 'fcall' command"


@pytest.mark.parametrize(
    ("text", "words"),
    [(UNKNOWN, "Redis 7"), (NO, r"\+fcall"), ("OOM command not allowed", "cannot be called: OOM")],
)
def test_why_functions_cannot_be_called_is_said_to_those_who_need_them(
    text: str, words: str
) -> None:
    looked = [refusal(text), refusal(text)]
    ((level, what, _),) = answered([looked], fix=False)
    assert level == "error"
    assert re.search(words, what)
    assert answered([looked], fix=False, needed=False) == []


@pytest.mark.parametrize("text", [UNKNOWN, "READONLY You can't write", "ERR Error compiling"])
def test_why_functions_cannot_be_loaded_is_an_error_for_those_who_need_them(text: str) -> None:
    looked = [refusal(text), refusal(text)]
    for needed, expected in ((True, "error"), (False, "warning")):
        ((level, what, todo),) = answered([looked, [refusal(text)]], fix=True, needed=needed)
        assert level == expected
        assert what
        assert todo
