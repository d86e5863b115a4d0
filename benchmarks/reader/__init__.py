"""How fast the streaming reader is beside other readers and beside the machine's limits.

`python -m benchmarks.reader` from the repository's root; `docs/contributing/laboratory.md`
explains the figures.
"""
