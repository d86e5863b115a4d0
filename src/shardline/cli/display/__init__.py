"""Output of the `shardline` command, on a terminal or into a pipe."""
