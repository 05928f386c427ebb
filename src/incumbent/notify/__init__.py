"""Tells receivers over HTTP: signed webhooks, and pings for a dead man's switch."""
