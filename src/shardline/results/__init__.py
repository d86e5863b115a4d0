"""What the command line asks of sealed results."""
