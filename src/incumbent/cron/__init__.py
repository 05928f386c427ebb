"""Jobs that run once in the fleet: schedules, slots, and the ledger of each slot's outcome.

The road of one slot:

    schedule   names the slot by its instant, alike on every instance: `slot_id`
    instance   the loop: it sleeps until the agenda has an order
    agenda     the slot is due: an order to claim it
    executor   Executor carries it out: the store grants the slot's lease to one instance
    serving    CommandLauncher: claims by `runs.Claimer`, sends the task to the zygote
    zygote     forks workers, or hands the claim to one that stands by
    worker     adopts the claim, records the slot as running; `supervise.run` runs the command
    ledger     the record, which changes only under the claim: running, then its end

`judging` decides what became of slots that are late, missed or lost; `once` is the same ledger for
runs that an outside scheduler starts; `jobs` runs Python functions instead of commands.
"""
