"""Keeps leases alive: threads, deadlines, and the ports of the blocking and asyncio sides."""
