"""`redis+quorum://` leases on an odd number of independent Redis or Valkey servers, by majority.

`ballots` has the rules, `dialect` packs requests to one node and reads the replies: both are pure.
`take`, `renew`, `changes` and `read` are the operations on all nodes, written once over a panel
(`nodes`), which connects an operation to all nodes. `engine` (blocking) and `aio` (asyncio) run the
operations; the scripts in `node.lua` decide on each node. Connections come from `stores.redis`.
"""

from incumbent.stores.quorum.options import open_quorum

__all__ = ["open_quorum"]
