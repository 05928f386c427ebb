"""The page that operators leave open: what the store knows, as HTML, live."""
