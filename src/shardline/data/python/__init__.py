"""Data that exists as Python: torch datasets, functions that return one, and Lightning data modules."""
