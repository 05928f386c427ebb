"""What the tests stand on: real servers and a network that fails on request."""
