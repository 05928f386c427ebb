"""Jobs that run once in the fleet: schedules, slots, and the ledger of what became of them."""
