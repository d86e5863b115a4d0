"""What made a file, back to the sources."""

from shardline.lineage.graph import Action, File, Lineage
from shardline.lineage.tracer import trace

__all__ = ["Action", "File", "Lineage", "trace"]
