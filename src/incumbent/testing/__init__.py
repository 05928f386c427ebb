"""For the tests of stores and applications: the contract suite, and a pytest plugin (opt-in)."""
