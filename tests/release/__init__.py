"""What users install: the wheel, the source package, each Python, the oldest clients."""
