"""Telling trackers of a training, which they can neither stop nor slow.

A process beside the job's own for each of them follows the run's folder in the store: `beside`
starts and ends it, `follow` is its program, `records` reads what is new, `notes` are what it
leaves in the run's folder, and each `to_*` is a `tracker`.
"""

from shardline.tracking.beside import Story, tracked

__all__ = ["Story", "tracked"]
