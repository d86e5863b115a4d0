"""What made a file, back to the sources."""

from shardline.results.lineage.graph import Action, File, Lineage
from shardline.results.lineage.tracer import trace

__all__ = ["Action", "File", "Lineage", "trace"]
