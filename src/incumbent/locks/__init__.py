"""What users hold: locks, elections, semaphores, groups and shards, each on the one lease."""
