"""Every store of ours passes the suite that we publish."""
