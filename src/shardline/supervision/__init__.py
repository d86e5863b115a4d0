"""The launcher as a child process: attempts, heartbeats, watchdog, failures and stop signals."""
