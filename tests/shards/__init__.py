"""Groups and shards: who has what, in virtual time, on every side, and under faults."""
