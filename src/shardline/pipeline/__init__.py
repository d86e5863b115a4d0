"""What each rule's job does, from the files that Snakemake names to the files that it expects.

Where a storage provider is set these are local copies, so no job asks the project
for a declared file's path. An input that is not named, since its job was forced to
run again over what it had sealed, is at the project's own path. Shards and training
checkpoints are always in the store.
"""

from shardline.pipeline.common import job
from shardline.pipeline.datasets import build_shards, describe_asset, seal_dataset
from shardline.pipeline.envs import build_image, create_env, lock_envs
from shardline.pipeline.reports import report
from shardline.pipeline.runs import evaluate, resolve_run
from shardline.pipeline.training import run_preflight, train, train_first_steps

__all__ = [
    "build_image",
    "build_shards",
    "create_env",
    "describe_asset",
    "evaluate",
    "job",
    "lock_envs",
    "report",
    "resolve_run",
    "run_preflight",
    "seal_dataset",
    "train",
    "train_first_steps",
]
