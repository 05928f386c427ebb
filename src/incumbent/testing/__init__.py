"""For tests of others: the contract suite, the simulator, and the pytest plugin (opt-in)."""
