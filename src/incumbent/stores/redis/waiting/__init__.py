"""Who waits for a lease on Redis, and how it hears that its turn has come."""
