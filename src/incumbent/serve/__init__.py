"""What an instance says of itself: HTTP pages, a status file, systemd."""
