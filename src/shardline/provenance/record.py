"""Provenance of a training: software, environment, git state and time."""

import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import UNSET, convert

from shardline.config.resolved import RunSpec
from shardline.core.files import utc_stamp
from shardline.core.git import git_state
from shardline.core.one_lightning import DISTRIBUTIONS, loaded
from shardline.core.world import World
from shardline.environments.installed import observe
from shardline.identity.interpreter import plain_versions
from shardline.records.origins import DatasetRef, MixedDataset
from shardline.records.ranks import RankReport, RanksOfTraining
from shardline.records.trainings import Places, Training, TrainingProvenance

_PACKAGES = (
    "shardline",
    "torch",
    "pytorch-lightning",
    "numpy",
    "safetensors",
    "scikit-learn",
    "snakemake",
)


def software() -> dict[str, str]:
    """Return the platform, and the installed versions of Python and of the main packages."""
    versions = {"python": platform.python_version(), "platform": platform.platform()}
    used = [DISTRIBUTIONS[package]] if (package := loaded()) == "lightning" else []
    known = plain_versions(names := [*_PACKAGES, *used], sys.path)
    return versions | {name: known.get(name) or _version(name) for name in names}


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def sources() -> dict[str, Any]:
    """Return the present software, environment, and git state of the project and of Shardline."""
    return {
        "software": software(),
        "environment": observe(),
        "git": git_state(Path.cwd()),
        "shardline_git": git_state(Path(__file__).parents[1]),
    }


def now() -> str:
    """Return the present time in UTC, to the second."""
    return utc_stamp(timespec="seconds")


def make_provenance(
    spec: RunSpec, *, sources: Mapping[str, Any], world: World,
    preflight: Mapping[str, Any], manifests: Sequence[str], started: str, duration_s: float,
    measured: Mapping[str, Any], training: Training, tracking: Places,
    files: Mapping[str, str],
) -> TrainingProvenance:  # fmt: skip
    """Return the provenance of one trained run.

    Args:
        spec: Resolved settings of the run.
        sources: Result of `sources` at the start of the training.
        preflight: Results of the preflight check: `backend`, and a report per rank.
        manifests: SHA-256 of the manifest of each dataset, in the order of `spec.datasets`.
        duration_s: Running time of all attempts, in seconds.
        measured: `attempts` and other measurements of the training.
        tracking: Location of the training by tracker.
        files: SHA-256 by name of sealed file.
    """
    ranks = convert(preflight["ranks"], list[RankReport])
    read = [
        MixedDataset(id=key, weight=weight, manifest_sha256=digest)
        for (key, weight), digest in zip(spec.datasets.items(), manifests, strict=True)
    ]
    is_mix = len(read) > 1
    return TrainingProvenance(
        run=spec.run,
        identity=spec.identity,
        dataset=UNSET if is_mix else DatasetRef(id=read[0].id),
        datasets=read if is_mix else UNSET,
        manifest_sha256=UNSET if is_mix else read[0].manifest_sha256,
        bases=list(spec.bases) or UNSET,
        files=dict(files),
        seed=spec.settings.seed,
        started=started,
        ended=now(),
        duration_s=round(duration_s, 3),
        **measured,
        training=training,
        tracking=dict(tracking),
        world=RanksOfTraining(
            world_size=world.world_size,
            nodes=world.num_nodes,
            launcher=world.launcher,
            backend=preflight["backend"],
            ranks=ranks,
        ),
        devices=[rank.device for rank in ranks],
        host=platform.node(),
        **sources,
    )
