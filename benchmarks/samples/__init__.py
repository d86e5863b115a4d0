"""How fast samples of named columns become batches, beside other libraries and the machine's limits.

`python -m benchmarks.samples` from the repository's root; `docs/contributing/laboratory.md` explains the figures.
"""
