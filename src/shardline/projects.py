"""A project in Python and in notebooks: `shardline.open` returns a `Project`."""

from shardline.notebook.listings import LoggedImage
from shardline.notebook.project import Project
from shardline.notebook.run import Run
from shardline.notebook.study import Study

__all__ = ["LoggedImage", "Project", "Run", "Study"]
