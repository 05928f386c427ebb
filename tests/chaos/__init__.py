"""Random faults on real fleets, and a judge outside of them."""
