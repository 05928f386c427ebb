"""Each recipe of docs/cookbook, run against the real framework and real servers."""
