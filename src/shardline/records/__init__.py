"""Record types of the JSON files that Shardline seals or passes between processes.

The writer of a file encodes its record, and each reader decodes it, so the fields are defined once.
"""
