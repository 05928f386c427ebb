"""What the answer to a repeated request says, where the first try was perhaps carried out."""

from __future__ import annotations

from typing import TypeVar

from incumbent.errors import OutcomeUnknown
from incumbent.model import Gone

__all__ = ["heard_again"]

T = TypeVar("T")


def heard_again(outcome: T, where: str) -> T:
    """`outcome`, unless the first try may be its cause: then OutcomeUnknown.

    That is a release that finds nothing. To its caller "gone" would mean that the lease was lost.
    """
    if isinstance(outcome, Gone):
        raise OutcomeUnknown(
            f"{where}: the first release got no answer and the second found no such lease: it was"
            " given back, or it was lost before"
        )
    return outcome
