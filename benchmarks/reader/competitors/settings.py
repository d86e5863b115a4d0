"""Settings of ours that the goals need as well, importable without the reader."""

WINDOW_BYTES = 256 << 20  # the default of `data.window_bytes`
