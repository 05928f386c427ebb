"""The state of this instance, on HTTP pages and in notifications to systemd."""
