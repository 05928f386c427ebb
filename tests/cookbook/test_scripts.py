"""A script in the crontab of every host: one of them does the work of a night."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiers
from tests.cookbook.recipe import Recipe, cooked
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.FRAMEWORKS)]


@pytest.fixture
def recipe(own_redis: RedisServer, tmp_path: Path) -> Iterator[Recipe]:
    store = f"{own_redis.url}?restart_wait=0"
    with cooked("scripts", tmp_path, INCUMBENT_STORE=store) as recipe:
        yield recipe


def test_of_five_hosts_one_does_the_work_of_a_night(recipe: Recipe) -> None:
    hosts = [recipe.start("python", "sync.py", "2026-11-22") for _ in range(5)]
    assert [host.process.wait(60) for host in hosts] == [0] * 5
    said = sorted(host.said for host in hosts)
    assert said == ["ran already, here or elsewhere\n"] * 4 + ["syncing 2026-11-22\n"]
    assert "ran already" in recipe.run("python", "sync.py", "2026-11-22")
