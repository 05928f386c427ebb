"""The protocols of a lease, written once as coroutines against a Port; the ports; the keeper."""
