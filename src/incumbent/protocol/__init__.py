"""The protocols of a lease, written once as coroutines against a Port; `runtime` has the ports."""
