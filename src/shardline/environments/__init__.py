"""Environments of the stages: their contents, the packages installed on a machine, and the ranks' Python."""
