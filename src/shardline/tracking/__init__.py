"""Trackers show a training in other programs, and can neither stop nor slow the training.

Each tracker has its own process, which reads the run's folder in the store. `processes` starts and ends
this process, `tracker_process` is its program, `metric_batches` reads new metric records, `run_links` writes
links into the run's folder, and each module of `backends` implements a `tracker`.
"""

from shardline.records.tracking import TrackingContext
from shardline.tracking.processes import tracked

__all__ = ["TrackingContext", "tracked"]
