"""Snakemake whose Slurm plugin asks after its jobs each second.

The plugin waits ten seconds longer each time that nothing has ended, up to
three minutes, which no setting changes; tests would mostly wait.
"""

import sys

import snakemake_executor_plugin_slurm as plugin
from snakemake.cli import main

if __name__ == "__main__":
    plugin.Executor.next_seconds_between_status_checks = property(
        lambda self: 1.0, lambda self, value: None
    )
    sys.exit(main())
