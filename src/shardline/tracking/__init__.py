"""Showing a training in trackers, which can neither stop nor slow it.

Each tracker has a process beside the job's own, which reads the run's folder in the store: `processes`
starts and ends it, `tracker_process` is its program, `records` reads new metric records, `run_links` is
what it leaves in the run's folder, and each module of `backends` is a `tracker`.
"""

from shardline.records.tracking import TrackingContext
from shardline.tracking.processes import tracked

__all__ = ["TrackingContext", "tracked"]
