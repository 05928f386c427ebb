"""What helps to test stores and applications. pytest loads none of it by itself.

contract   the suite that a store has to pass before it can be trusted with a lease
clients    other clients for such tests: processes with clocks of their own
proxy      a network between a client and a server that fails as a test wants it
plugin     fixtures for applications (`-p incumbent.testing.plugin`)
"""
