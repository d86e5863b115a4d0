"""What the `shardline` command puts on a terminal, or into a pipe."""

from shardline.cli.display.checks import (
    show_candidates,
    show_comparison,
    show_export,
    show_lineage,
    show_replay,
)
from shardline.cli.display.drills import show_drill
from shardline.cli.display.terminal import say, say_json, waiting_for
from shardline.cli.display.upkeep import (
    say_freed,
    show_explanation,
    show_garbage,
    show_repair,
    show_runs,
    show_verdict,
)

__all__ = [
    "say",
    "say_freed",
    "say_json",
    "show_candidates",
    "show_comparison",
    "show_drill",
    "show_explanation",
    "show_export",
    "show_garbage",
    "show_lineage",
    "show_repair",
    "show_replay",
    "show_runs",
    "show_verdict",
    "waiting_for",
]
