"""Acceptance of earlier results for the present identity.

The files are linked (or copied) under the present identity. `accepted.json` records the earlier
identity, the user, the time, the reason and the differences.
"""
