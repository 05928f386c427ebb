"""Drivers of the protocols: blocking, asyncio, and the keeper thread that renews."""
