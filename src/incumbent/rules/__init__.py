"""The rules of a lease, said once: what each request does to the record of a name.

A *record* is a value: who holds the name and until when, who waits for it, what keeps it closed.
A *rule* is a pure function: it gets the record, a request and an instant, and answers with the
outcome and the next record. A *store* keeps records: it reads one, and replaces it only if nobody
replaced it meanwhile; else it reads again and asks the rule again. So if two requests were decided
from one record, only the first write counts; the other is decided again. Whatever can read and
replace like this can be a store; see `stores.registers`.

The life of a name:

         take                    renew
    free ----> held by a claim --------> held for longer
     ^           |      |
     |           |      +-- its ttl ends: free, and the first waiter has its turn
     |           +--------- give: the same; or, with `closed_for`, closed for that long
     +---------- closed_for ends        (meanwhile only a successor that its holder named is let in)

Words. A *claim* identifies one attempt to hold a name, and a *holder* is the name of an instance
that people read. Several claims *share* a name if all of them ask with the same number of
`permits`. A *slot* is a piece of work that is claimed along with the name, once. *Pause* is a
field that keeps the name from all new claims until the field is removed. A *candidate* is listed
for people. A claim is *given up* if its caller left without an answer to its take.

Three rules of time:

1. Instants are on the store's clock, in microseconds. The clock of a client decides nothing.
2. `now` is never later than the store's clock at the instant of the write. So a lease ends for
   others no earlier than its ttl after the write, and its holder, which counts from before the
   write, has stopped believing in it by then.
3. An instant that begins with a write (a ttl, a turn) is not known before the write. The rule says
   `after(us)`, and it means: that long after the instant at which the store wrote this record.

Once a name is free, the successor that its holder named is next, then the first in line.
Others may overtake a first waiter that did not ask to be `fair`, four times since it became the
first (`model.OVERTAKEN_MOST`). Waiters become the first in the order of arrival. A *turn* of the
first begins when the name is given back, and lasts until it has been silent for its heartbeat;
then it loses its place to the next claim that asks.

`record` has the values. The rules follow a lease: `taking` (may it be granted, to whom, or where
does the claim stand in line), `line`, `keeping` (renew, give, and the fields beside the lease).
`codec` is the text of a record, `columns` is a record as a row, and `showing` shows one to people.
The contract that these rules keep is that of `stores.base.Store`. The word "token" is used as in
Kleppmann, "How to do distributed locking": a number that grows with each grant, so that a resource
can refuse an earlier holder.
"""
