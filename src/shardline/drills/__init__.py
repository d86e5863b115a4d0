"""Fault-injection tests: a real fault in a tiny training under the user's profile, and the work it costs."""
