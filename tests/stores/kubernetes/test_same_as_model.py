"""`kubernetes://` answers as the second model of the contract does, whatever is done in any order.

The clock by which this process counts, and that of the API server, stand still but when the test
moves them; neither margin is kept, for the model has none.
"""

from __future__ import annotations

import pytest

from incumbent.stores.kubernetes import known, objects
from tests import tiers
from tests.rules.histories import Subject, play
from tests.stores.kubernetes.world import a_namespace, open_at, url_of
from tests.support.kubernetes import ApiServer

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.SEEDS)]


@pytest.mark.timeout(300)
def test_the_server_answers_as_the_model_does(
    api_server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_SLOW", 1.0)
    for module in (known, objects):
        monkeypatch.setattr(module, "SKEW", 0)
    at = [0.0, 0.0]

    def move(now: float, wall: float) -> None:
        at[:] = now, wall

    monkeypatch.setattr(known.Known, "now", staticmethod(lambda: at[0]))
    monkeypatch.setattr(known.Known, "wall", lambda _: int(at[1] * 1e6))
    for seed in range(12):
        move(1_000.0, 1_800_000_000.0)
        store = open_at(url_of(api_server, a_namespace(api_server))).store()
        play(seed, Subject(store, move))
        store.close()
