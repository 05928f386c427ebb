"""What helps to test stores and applications; pytest loads none of it by itself.

`contract`: the suite that a store has to pass; `clients` and `proxy`: other processes, and networks
that fail, for its tests; `plugin`: fixtures for the tests of applications.
"""
