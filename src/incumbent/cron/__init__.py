"""Jobs that run once in the fleet: schedules, slots, and the ledger of each slot's outcome."""
