"""Which samples each step of a training consumes: NumPy alone, so that other frameworks can use it."""

VERSION = 1  # of the order; `run.json` holds it, and a training refuses another
