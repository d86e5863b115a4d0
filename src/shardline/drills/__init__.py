"""Fault drills: a tiny training on the user's own profile, a real fault, and whether anything was lost."""
