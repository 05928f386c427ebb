"""A checker of whole histories: what every party sent, heard and believed, judged afterwards."""
