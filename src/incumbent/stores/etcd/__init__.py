"""`etcd://` leases on an etcd cluster (3.4 or later), over its JSON gateway.

From the bottom up: `kv` (the words of requests) and `records` (what is kept under which key) are
pure. `sessions`, `incarnation`, `taking`, `renewing` and `dialect` are programs: they yield
requests and are sent their replies. `client` carries them out, on whichever member answers,
over `net.http`.
"""

from incumbent.stores.etcd.engine import open_etcd

__all__ = ["open_etcd"]
