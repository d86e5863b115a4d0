"""What every package may use: errors, files, digests, processes, redaction. Nothing here knows the product."""
