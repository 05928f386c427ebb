"""The page for operators: all leases and jobs of a namespace as HTML, updated live."""
