"""The store contract and the engines that keep it."""
