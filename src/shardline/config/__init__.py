"""Config and run table: read, validated, resolved, and turned into identities and paths."""
