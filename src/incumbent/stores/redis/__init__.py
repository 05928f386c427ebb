"""Redis and Valkey: one server, a master that sentinels name, or a cluster.

An operation is a Lua script, which decides on the server, and a module that packs its arguments
and reads its reply: `take`, `give`, `renew`, `put_read`. `runner` makes plans of them and carries
these out on the connections to one server (`wire`), for blocking code (`sync`) and for asyncio
(`aio`). `sentinel` and `cluster` wrap that for more than one server. `subscription` is how waiters
learn that they may go on. hiredis is imported when the first engine is made.
"""

# What the words mean here:
#
#   lease     the right to a name, and the key with its value; it goes when its time is over
#   record    what is kept of a name beside its lease: a hash (records.FIELDS). A `Record` has both
#   field     of the record; one that `put` writes is a `Field`
#   claim     a random id of who asks for the lease, or holds it
#   site      a server as it was configured, with what this process has learned of it
#   epoch     the id of an incarnation of a server's data, as its marker and each grant name it
#   promotion the number of a master's promotion, as sentinels count them
#   slot      of the model: a run that is claimed once. Of a cluster: a part of all keys

# The road of a take on one server:
#
#   sync.RedisStore.take    an idle connection to a server that was checked just now: packs the
#                           request, asks, reads the reply (`take`), without a plan. Otherwise:
#   runner.RedisRunner.run  is a refusal known that still holds (`subscription`)? Then no request
#   net.pool                `carry`: an idle connection, or a new one, which begins with the
#                           `incarnation.handshake`
#   runner                  `carry_out`: is it too early to grant? Else the plan's program begins:
#   take.take_program       a take, mostly with a check of the server
#   wire.run_program        sends each request of the program, and gives it the replies
#   take.lua                decides
#
# asyncio: the same, with aio.AsyncRedisStore in the place of the first two.

from incumbent.stores.redis.engine import engine_from_client, open_store

__all__ = ["engine_from_client", "open_store"]
