"""Calls of the system that Python does not have."""

from __future__ import annotations

import errno
import sys

import pytest

from incumbent.supervise import kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="calls of Linux")


def test_a_call_that_failed_says_why() -> None:
    with pytest.raises(OSError, match="descriptor") as caught:
        kernel._call("close", -1)
    assert caught.value.errno == errno.EBADF
