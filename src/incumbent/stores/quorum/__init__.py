"""`redis+quorum://` leases on an odd number of independent Redis or Valkey servers, by majority.

`ballots` are the rules (pure), `dialect` what is said to one node (pure), `rounds`, `upkeep`,
`switches` and `reading` how an operation goes about it with all of them, written once over a
`panel`; `sync` and `aio` move it, the Lua scripts decide on the nodes. Connections are those of
`stores.redis`.
"""

from incumbent.stores.quorum.opening import open_quorum

__all__ = ["open_quorum"]
