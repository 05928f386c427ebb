"""`mysql://` answers as the second model of the contract does, whatever is done in any order.

The server's clock stands still but when the test moves it.
"""

from __future__ import annotations

import pytest

from incumbent.stores.mysql import open_mysql
from tests import tiers
from tests.rules.histories import Subject, play
from tests.stores.mysql.world import Clock, new_database
from tests.support.mariadb import MariaServer

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.SEEDS)]


@pytest.mark.timeout(180)
def test_the_server_answers_as_the_model_does(
    maria_server: MariaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, server = new_database(maria_server), Clock(monkeypatch)

    def move(_now: float, wall: float) -> None:
        server.stands_at = int(wall * 1e6)

    for seed in range(40):
        move(1_000.0, 1_800_000_000.0)
        for table in ("lease", "beside"):
            maria_server.sql(f"DELETE FROM incumbent_{table}", database)
        store = open_mysql(f"{maria_server.url_of(database)}?restart_wait=0").store()
        play(seed, Subject(store, move))
        store.close()
