"""Random numbers that no application can seed."""

from __future__ import annotations

import os
import random

# Our own generator: an application that seeds `random` alike everywhere must not align a fleet.
_chance = random.Random()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chance.seed)

draw_jitter = _chance.random
"""Draw a uniform random number in [0, 1), to spread actions that would coincide otherwise."""


def draw_claim() -> str:
    """128 random bits as 32 hexadecimal digits."""
    return os.urandom(16).hex()
