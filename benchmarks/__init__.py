"""What a lease costs, beside its peers, in one interleaved run: `make bench`."""
