"""`redis+quorum://` leases on an odd number of independent Redis or Valkey servers, by majority.

`ballots` has the rules, `dialect` packs requests to one node and reads the replies: both are pure.
`take` (and give), `renew`, `changes` and `read` are the operations on all nodes, written once over
a panel (`nodes`), which connects an operation to all nodes; `operations` makes plans of them.
`connecting` (both sides), `links` (blocking) and `aio` (asyncio) connect the panel, with the wire
of `stores.redis`. `waiting` has the messages that end a wait, `engine` what users open. The scripts
in `node.lua` decide on each node.
"""

from incumbent.stores.quorum.options import open_quorum

__all__ = ["open_quorum"]
