"""The rules of a lease, said once: what each request does to the record of a name.

A *record* is a value: who holds the name and until when, who waits for it, what keeps it closed.
A *rule* is a pure function: it gets the record, a request and an instant, and answers with the
outcome and the next record. A *store* keeps records: it reads one, and replaces it only if nobody
replaced it meanwhile; else it reads again and asks the rule again. A renewal is such a write, too.
Whatever can do that can be a store; see `stores.registers`.

The life of a name:

         take                    renew
    free ----> held by a claim --------> held for longer
     ^           |      |
     |           |      +-- its ttl ends: free, and the first waiter has its turn
     |           +--------- give: the same; or, with `closed_for`, closed for that long
     +---------- closed_for ends        (to all, or to all but a successor that the holder named)

Words. A *claim* identifies one attempt to hold a name, and a *holder* is the name of an instance
that people read. Several claims *share* a name if all of them ask with the same number of
`permits`. A *slot* is a piece of work that is claimed along with the name, once. *Pause* is a
field that keeps the name from all new claims; only writing the field again ends it. A *candidate*
is listed for people. A claim is *given up* if its caller left without an answer to its take.

Three rules of time:

1. Instants are on the store's clock, in microseconds. The clock of a client decides nothing.
2. `now` is never later than the store's clock at the instant of the write. So a lease ends for
   others no earlier than its ttl after the write, and its holder, which counts from before the
   write, has stopped believing in it by then.
3. An instant that begins with a write (a ttl, a turn) is not known before the write. The rule says
   `after(us)`, and it means: that long after the instant at which the store wrote this record.

Who is next, once a name is free: the successor that its holder named; then the first in line.
Others may overtake a first waiter that did not ask to be `fair`, four times in a row
(`model.OVERTAKEN_MOST`). Each waiter becomes the first in the order of arrival. A first waiter
that stays silent for its heartbeat in its turn loses its place to the next one that asks.

`record` has the values. The rules follow a lease: `taking` (may it be granted, to whom, or where
does the claim stand in line), `line`, `keeping` (renew, give, and the fields beside the lease).
`codec` is the text of a record, `columns` is a record as a row, and `showing` shows one to people.
The contract that these rules keep is that of `stores.base.Store`. The word "token" is used as in
Kleppmann, "How to do distributed locking": a number that grows with each grant, so that a resource
can refuse an earlier holder.
"""
