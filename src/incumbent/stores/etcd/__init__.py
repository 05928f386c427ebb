"""`etcd://` leases on an etcd cluster (3.4 or later), over its JSON gateway.

From the bottom up: `kv` (keys, values, requests and replies) is pure. `sessions`, `incarnation`,
`taking`, `renewing` and `dialect` are programs: generators that yield requests and receive the
replies. `line`, `places` and `obstacles` are what a take finds and leaves there, `foreign` the
clients that are not ours, `waiting` where a waiter stands. `client` runs the programs on any member
that answers, over `net.http`, and waits.
"""

# What the words mean here:
#
#   lease       ours: the right to a name. A key under that name holds it, for a claim
#   etcd lease  etcd's: a ttl that it keeps for the keys attached to it. In code each `..lease` is
#               the id of one
#   session     an etcd lease of this process, with the claims whose keys are attached to it
#   contender   a key under a name: `held`, a seat of those that share it, our ticket, a foreign key
#   record      what is kept of a name beside the contenders. A `Record` has both
#   place       a waiter's key in our own line; its position is where that stands, as last read

from incumbent.stores.etcd.engine import open_etcd

__all__ = ["open_etcd"]
