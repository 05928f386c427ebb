"""FastAPI: of several instances one leads, and its shutdown hands over."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from incumbent import Client
from tests import tiers
from tests.cookbook.recipe import Program, Recipe, cooked
from tests.cron.fleet import descendants
from tests.support.pace import now
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
    eventually(lambda: leaders(other))
    with Client(recipe.settings["INCUMBENT_STORE"]) as client:
        its_term, before, *_ = reversed(client.read("switch-7").history)
    # Only who gives a lease back notes when; else it would last for its ttl.
    assert its_term.ended is None
    assert before.ended is not None
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


# -- the page behind the application's sign-in -----------------------------------------------------

PAGE = {
    "uvicorn": ("uvicorn", "admin:app", "--port", "PORT", "--log-level", "warning"),
    "hypercorn": ("hypercorn", "admin:app", "--bind", AT),
}
ANN = {"Authorization": "Bearer token-of-ann"}


@contextmanager
def opened(
    program: Program, path: str, body: Any = None, headers: Any = None
) -> Iterator[HTTPResponse]:
    with closing(HTTPConnection("127.0.0.1", program.port, timeout=60)) as link:
        method = "GET" if body is None else "POST"
        link.request(method, f"/incumbent{path}", body, headers or {})
        with closing(link.getresponse()) as response:
            yield response


def asked(program: Program, *args: Any) -> tuple[int, str]:
    with opened(program, *args) as response:
        return response.status, response.read().decode()


@pytest.mark.parametrize("server", PAGE)
def test_the_page_is_for_who_is_signed_in_and_ends_with_the_server(
    recipe: Recipe, server: str
) -> None:
    program = recipe.serve(*PAGE[server])
    eventually(lambda: program.ask("/leaderz")[0] == 200)
    assert [asked(program, path)[0] for path in ("/", "/events", "/name")] == [401] * 3
    status, page = asked(program, "/", None, ANN)
    assert (status, "switch-7" in page) == (200, True)
    with opened(program, "", None, ANN) as response:
        assert (response.headers["Location"] or "").endswith("incumbent/")
    wish = "/api/v1/leases/other/pause"
    foreign = {**ANN, "Origin": "https://evil.example"}
    assert [asked(program, wish, b"{}", one)[0] for one in ({}, foreign)] == [403, 403]
    status, said = asked(program, wish, b"{}", ANN)
    assert (status, json.loads(said)["who"].partition(" by ")[0]) == (202, "ann")
    with opened(program, "/events", None, ANN) as stream:
        assert stream.readline() == b"retry: 2000\n"
        while not stream.readline().startswith(b"data: "):
            pass
        # Its stream ends by itself: the server need not wait for ever.
        program.process.terminate()
        program.process.wait(120)
    assert "page/asgi.py" not in program.said
