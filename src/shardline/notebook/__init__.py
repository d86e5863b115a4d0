"""A project in Python and in notebooks: runs, settings, metrics, models and data."""
