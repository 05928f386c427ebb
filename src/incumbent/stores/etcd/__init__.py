"""`etcd://` leases on an etcd cluster (3.4 or later), over its JSON gateway.

From the bottom up: `kv` (keys, values, requests and replies) is pure. `sessions`, `incarnation`,
`taking`, `renewing`, `waiting` and `dialect` are programs: generators that yield requests and
receive the replies. `client` runs the programs on any member that answers, over `net.http`.
"""

from incumbent.stores.etcd.engine import open_etcd

__all__ = ["open_etcd"]
