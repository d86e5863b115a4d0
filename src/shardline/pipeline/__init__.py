"""What each rule's job does, from the files that Snakemake names to the files that it expects.

Where a storage provider is set these are local copies, so no job asks the project
for a declared file's path. An input that is not named, since its job was forced to
run again over what it had sealed, is at the project's own path. Shards and training
checkpoints are always in the store.
"""
