"""Two processes, in effect, that ask one etcd for the same name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.etcd.world import PREFIX, Party, party
from tests.support.etcd import EtcdServer


@pytest.fixture
def here(own_etcd: EtcdServer) -> Iterator[Party]:
    with party(own_etcd.store_url(PREFIX)) as one:
        yield one


@pytest.fixture
def other(own_etcd: EtcdServer, here: Party) -> Iterator[Party]:
    """Another process, in effect, that asks for the same name."""
    with party(own_etcd.store_url(PREFIX)) as one:
        one.key = here.key
        yield one
