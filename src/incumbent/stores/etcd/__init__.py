"""`etcd://` leases on an etcd cluster (3.4 or later), over its JSON gateway.

`dialect` and `records` know what to say and how to read it (pure), `memory` remembers what was
proved (pure), `operations` is each operation written once, `sync` and `aio` move the bytes. The
HTTP is our own: a pair of requests by httpx2 costs 1.8 times the barest one, by httpcore2 1.5.
"""

from incumbent.stores.etcd.engine import open_etcd

__all__ = ["open_etcd"]
