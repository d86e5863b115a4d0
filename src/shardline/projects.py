"""A project in Python and in notebooks: `shardline.open` returns a `Project`."""

from shardline.notebook.listings import Figure, LoggedImage
from shardline.notebook.project import Project
from shardline.notebook.run import Run
from shardline.notebook.study import Study

__all__ = ["Figure", "LoggedImage", "Project", "Run", "Study"]
