"""How this instance is doing: HTTP pages and notifications to systemd."""
