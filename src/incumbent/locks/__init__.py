"""What users hold: locks, elections, semaphores, groups and shards, each on the one lease.

The road of `Lock.acquire`, from here down; each line calls the next:

    locks.lock        Lock: the caller, reentry, what is kept for `release`
    protocol.acquire  one claim for all tries: take, wait, take again; a coroutine, which blocking
                      code runs in one step (`stores.plan.run_blocking`)
    runtime.sync      the port of blocking code (runtime.aio: of asyncio)
    stores.STORE      take, renew, give on one store (redis.sync; *: stores.turns, etcd.taking)
    net               its connections, the gate before them (limiter), the messages that end a wait

A lease that was granted goes to `runtime.keeper`, which renews it (`protocol.renew`) and ends it
(`lease`: the states; `runtime.deadlines`: the instants). `protocol.release` gives it back, or owes
that to the keeper as a debt.

A claim that is refused waits in the line of its store, in the order of `rules.line` (Redis: the
same order, in line.lua):

    store            where the line is          what wakes a waiter
    Redis            a sorted set (line.lua)    a message to its process (redis.subscription)
    etcd *           a key each (etcd.line)     a watch on keys ahead (etcd.waiting)
    PostgreSQL *     in the record              NOTIFY (postgresql.subscriber)
    Kubernetes       in the record              a watch on all Leases (kubernetes.watching)
    SQLite, MariaDB  in the record              looks at the record, which a process shares
    and users' own   in the record                (stores.polling)
    memory           in the record              the change itself
    quorum           none: all ask again        the same message of a majority (quorum.waiting)

    * Of a process's waiters for a name only one stands there; the others are behind it, in
      `stores.turns`. Candidates, sharers and those who asked for `fair=True` all stand there.

The words, one meaning each:

    wanted   a LeaseRequest: what a lock asks for, the same in each acquire
    claim    what one acquire asks with: its random id stays the same for all its tries
    lease    what the store grants to a claim for a ttl; etcd's own leases are "etcd leases"
    belief   a holder believes in its lease until the deadline, which counts from before the proof
    give     the release of a claim in the store; its Parting says what else it does there
    token    the number of a grant (the fencing token; in elections, the term)
    turn     the seconds in which the first in line may take a free name before all others; in
             `stores.turns` the time in which one waiter of a process asks for all
    place    the place of a waiter in the store's line; `Place` of a gate is an admission
    slot     what may be used once in a time, such as an instant of a schedule
    record   all that a store knows of a name; in cron, also a slot's record (SlotRecord)
    beside   what a store keeps of a name besides its record: fields, slots, history
    link     what this process has of one engine: store, keeper, ports; it is no connection
    debt     the release of a claim that may still stand in the store
    in doubt  a take without an answer: the store may have applied it, or may get it late
"""
