"""Seeds that once broke a rule, and why; each is run again for ever.

A seed means its history only as long as the simulator draws the same chances in the same order, so
each defect that was found has a mutant too (tests/sim/mutants.py).
"""

from __future__ import annotations

REGRESSIONS: list[tuple[str, int, str]] = [
    ("signals", 123, "a first take arrived after the release, and nobody gave its ghost back"),
    ("signals", 160, "one of two takes in doubt was settled, the other came later and stayed"),
    ("slots", 66, "a release that went unanswered was repeated without what at_least_for asked"),
    ("operators", 1503, "a pause that was lifted in time is not a notice that was ignored"),
]
