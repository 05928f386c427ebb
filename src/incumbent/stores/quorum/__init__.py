"""`redis+quorum://` leases on an odd number of independent Redis or Valkey servers, by majority.

`ballots` has the rules, `dialect` the requests to one node and their replies: both pure. `take`,
`renew`, `changes` and `read` are the operations on all nodes, written once over a panel (`nodes`).
`engine` and `aio` carry them out, and the scripts of `node.lua` decide on the nodes. The
connections are those of `stores.redis`.
"""

from incumbent.stores.quorum.options import open_quorum

__all__ = ["open_quorum"]
