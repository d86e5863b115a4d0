"""What the `shardline` command puts on a terminal, or into a pipe."""
