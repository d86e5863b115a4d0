"""Config and run table: read, validated, resolved, and turned into identities and paths."""

from shardline.config.project import Dataset, Project, Run, load_project

__all__ = ["Dataset", "Project", "Run", "load_project"]
