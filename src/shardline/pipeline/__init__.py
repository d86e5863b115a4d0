"""The job of each rule: from the input files that Snakemake passes to the output files that it expects.

With a storage provider, the passed files are local copies, so a job never asks the
project for a declared file's path. Snakemake passes no inputs to a job that is forced
to run again over its sealed output; the job then uses the project's own paths. Shards
and training checkpoints are always in the store.
"""
