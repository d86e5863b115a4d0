"""Fault-injection tests on the user's own profile: a tiny training, a real fault, and what was lost."""
