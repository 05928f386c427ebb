"""`demo`: faults on real processes, judged from outside, beside a plain loop."""

from incumbent.demo.story import command

__all__ = ["command"]
