"""Faults in combination: one generator for the simulators and for real fleets."""
