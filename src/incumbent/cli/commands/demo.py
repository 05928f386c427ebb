"""`demo`: faults on real processes, judged from outside, beside a plain loop."""
