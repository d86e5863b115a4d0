"""Order of samples: the rows that each training step consumes; needs only NumPy, for any framework."""

VERSION = 1  # version of the order; recorded in `run.json`, and a training rejects any other
