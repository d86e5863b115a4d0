"""A project in Python and in notebooks: `shardline.open` returns a `Project`."""

from shardline.notebook.project import Project
from shardline.notebook.run import LoggedImage, Run

__all__ = ["LoggedImage", "Project", "Run"]
