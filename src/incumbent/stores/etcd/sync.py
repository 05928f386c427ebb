"""The blocking side: `operations`, each in one step."""

from __future__ import annotations

import os
from weakref import WeakSet

from incumbent.stores.blocking import BlockingStore
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.exchange import Site
from incumbent.stores.etcd.memory import Memory
from incumbent.stores.etcd.operations import Operations
from incumbent.stores.etcd.options import Endpoint
from incumbent.stores.etcd.wire import Wire, dial

__all__ = ["EtcdStore"]


class _Blocking(Operations[Wire]):
    async def dial(self, endpoint: Endpoint, until: float) -> Wire:
        """See Exchange.dial."""
        return dial(self.site, endpoint, until)


class EtcdStore(BlockingStore[_Blocking]):
    """See stores.base.Store. A close ends the waits of all threads."""

    def __init__(self, site: Site, dialect: Dialect, memory: Memory) -> None:
        super().__init__(_Blocking(site, dialect, memory))
        _stores.add(self)

    def drop(self) -> None:
        """In a fork's child: give the descriptors back. What is in use was other threads'."""
        operations = self.operations
        operations.idle, operations.streams = {}, set()
        operations.memory.forget()
        for wire in list(operations.all):
            wire.drop()


_stores: WeakSet[EtcdStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
