"""What every room may use: errors, files, digests, processes, redaction. Nothing here knows the product."""
