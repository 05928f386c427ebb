"""FastAPI: of several instances one leads, and its shutdown hands over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiers
from tests.cookbook.recipe import Program, Recipe, cooked
from tests.cron.fleet import descendants
from tests.support.pace import now, took
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.FRAMEWORKS)]

COMMAND = ("uvicorn", "app:app", "--port", "PORT", "--log-level", "warning")
AT = "127.0.0.1:PORT"
SERVERS = {
    # Its extra, standard, brings uvloop.
    "uvicorn": COMMAND,
    "uvicorn on asyncio": (*COMMAND, "--loop", "asyncio"),
    "hypercorn": ("hypercorn", "app:app", "--bind", AT),
    "hypercorn on uvloop": ("hypercorn", "app:app", "--bind", AT, "--worker-class", "uvloop"),
    "gunicorn": ("gunicorn", "app:app", "--bind", AT, "-k", "uvicorn_worker.UvicornWorker"),
}

ON_UVLOOP = {"uvicorn", "hypercorn on uvloop", "gunicorn"}


def is_on_uvloop(program: Program) -> bool:
    """Whether it, or a worker of it, has loaded uvloop."""
    pids = (program.pid, *descendants(program.pid))
    return any("uvloop" in Path(f"/proc/{pid}/maps").read_text() for pid in pids)


@pytest.fixture
def recipe(own_redis: RedisServer, tmp_path: Path) -> Iterator[Recipe]:
    store = f"{own_redis.url}?restart_wait=0"
    with cooked("fastapi", tmp_path, INCUMBENT_STORE=store) as recipe:
        yield recipe


def leaders(*programs: Program) -> list[Program]:
    return [program for program in programs if program.ask("/leaderz")[0] == 200]


@pytest.mark.parametrize("server", SERVERS)
def test_of_two_instances_one_leads_and_both_are_healthy(recipe: Recipe, server: str) -> None:
    two = recipe.serve(*SERVERS[server]), recipe.serve(*SERVERS[server])
    (leader,) = eventually(lambda: leaders(*two))
    assert all(is_on_uvloop(program) == (server in ON_UVLOOP) for program in two)
    assert [program.ask("/healthz")[0] for program in two] == [200, 200]
    assert len({program.ask("/who")[1] for program in two}) == 1
    eventually(lambda: "polled with fence" in leader.said)
    (other,) = set(two) - {leader}
    assert "polled" not in other.said


@pytest.mark.parametrize("server", SERVERS)
def test_an_instance_that_shuts_down_hands_over_at_once(recipe: Recipe, server: str) -> None:
    two = recipe.serve(*SERVERS[server]), recipe.serve(*SERVERS[server])
    (leader,) = eventually(lambda: leaders(*two))
    (other,) = set(two) - {leader}
    leader.terminate()
    since = now()
    eventually(lambda: leaders(other))
    # By its ttl, 6 s, it would come later.
    assert took(since) < 3
    assert "Traceback" not in leader.said


def test_after_a_crash_the_other_leads_when_the_ttl_has_run_out(recipe: Recipe) -> None:
    two = recipe.serve(*COMMAND), recipe.serve(*COMMAND)
    (leader,) = eventually(lambda: leaders(*two))
    (other,) = set(two) - {leader}
    since = now()
    leader.kill()
    eventually(lambda: leaders(other))
    # The last renewal was at most a third of the ttl before.
    assert now() - since > 3.5
