"""Config and run table: read, validated, resolved, and turned into identities and paths."""

from shardline.config.load import load_project
from shardline.config.project import Dataset, Project, Run

__all__ = ["Dataset", "Project", "Run", "load_project"]
