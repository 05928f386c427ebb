"""A namespace of its own on the shared API server, or a server of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.kubernetes.world import a_namespace, open_at, url_of
from tests.stores.party import Party
from tests.support.kubernetes import ApiServer


@pytest.fixture
def place(api_server: ApiServer) -> str:
    """A namespace of the shared server."""
    return a_namespace(api_server)


@pytest.fixture
def one(api_server: ApiServer, place: str) -> Iterator[Party]:
    party = Party(open_at(url_of(api_server, place)))
    yield party
    party.store.close()


@pytest.fixture
def other(api_server: ApiServer, place: str, one: Party) -> Iterator[Party]:
    """Another process, as far as the store can tell; it asks for the same name."""
    party = Party(open_at(url_of(api_server, place)), one.key)
    yield party
    party.store.close()


@pytest.fixture
def alone(own_api_server: ApiServer) -> Iterator[Party]:
    """On a server of its own, to be upset."""
    party = Party(open_at(url_of(own_api_server, "default")))
    yield party
    party.store.close()
