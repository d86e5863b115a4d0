"""The launcher as a child, attempts, heartbeats, failures and stop signals."""
