"""The public interface changes on purpose only."""

from __future__ import annotations

import sys

from tests.release.public import KEPT, public_names
from tests.support.needs import needs


@needs(sys.version_info[:2] == (3, 11), "signatures are written by Python 3.11")
def test_what_users_import_is_what_it_was() -> None:
    """A difference needs a fragment in changes/; then `python -m tests.release.public`."""
    before, now = set(KEPT.read_text().splitlines()), set(public_names())
    assert sorted(before - now) == [], "gone, or changed"
    assert sorted(now - before) == [], "new"
