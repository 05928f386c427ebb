"""The command line: parsing, rendering and exit codes; decisions are made elsewhere."""
