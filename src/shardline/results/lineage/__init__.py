"""What made a file, back to the sources."""
