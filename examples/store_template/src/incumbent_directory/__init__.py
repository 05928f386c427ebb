"""`directory:///path`: leases as files in a directory of one host; a store to copy from."""

from incumbent_directory.engine import DirectoryEngine, open_directory

__all__ = ["DirectoryEngine", "open_directory"]
