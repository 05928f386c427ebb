"""The blocking side: `operations`, each in one step."""

from __future__ import annotations

import os
from weakref import WeakSet

from incumbent.stores.blocking import BlockingStore
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.operations import Operations
from incumbent.stores.etcd.site import Site
from incumbent.stores.etcd.url import Endpoint
from incumbent.stores.etcd.wire import Wire, dial

__all__ = ["EtcdStore"]


class EtcdStore(BlockingStore[Operations[Wire]]):
    """See stores.base.Store. A close ends the waits of all threads."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        super().__init__(Operations(site, dialect, _dialled))
        _stores.add(self)

    def drop(self) -> None:
        """In a fork's child: give the descriptors back. What is in use was other threads'."""
        client = self.operations.client
        client.idle, client.streams = {}, set()
        client.memory.forget()
        for wire in list(client.all):
            wire.drop()


async def _dialled(site: Site, endpoint: Endpoint, until: float) -> Wire:
    return dial(site, endpoint, until)


_stores: WeakSet[EtcdStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
