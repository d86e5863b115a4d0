"""Telling a tracking service of a training, which can neither stop nor slow it.

A process beside the job's own follows the run's folder in the store: `beside` starts and ends
it, `follow` is its program, `records` reads what is new, and `to_mlflow` is the service's side.
"""

from shardline.tracking.beside import Story, tracked

__all__ = ["Story", "tracked"]
