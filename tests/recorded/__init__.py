"""The requests of the contract run, recorded: a change inside must not change what a store sees.

    python -m tests.recorded                 # compare all engines with their recordings
    python -m tests.recorded compare redis   # or some of them
    python -m tests.recorded record redis    # renew a recording; its diff is for the review

Recorded is what goes over the wire (SQLite: the statements), whoever wrote it: the set of different
requests of each case, with claims, instants, revisions and ports replaced (see `normal`). Order and
number are not compared: threads and reconnects make them differ. The contract suite and `make
bench` look at those. A case whose threads or tasks contend is not recorded: chance decides what
they send. A recording is made of several runs: what only some of them have, because it depends on
timing, may be there and may be missing.
"""
