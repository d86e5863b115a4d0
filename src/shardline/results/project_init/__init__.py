"""The config of a project that has a model and data already."""

from shardline.results.project_init.config_text import ProjectText, project_text

__all__ = ["ProjectText", "project_text"]
