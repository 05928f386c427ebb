"""For tests of others: the contract suite, and the pytest plugin (opt-in)."""
