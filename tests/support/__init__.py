"""Harnesses, data and models that tests of several folders share."""
