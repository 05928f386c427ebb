"""The quorum of independent masters: a simulator of its ballots, and random faults on real ones."""
