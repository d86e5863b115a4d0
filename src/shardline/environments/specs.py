"""The contents of a stage's conda environment: Python and the locked packages that its code needs."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from msgspec import UNSET
from packaging.requirements import Requirement

from shardline.config.checked_sources import SHIPPED_SOURCES
from shardline.config.code_paths import SHIPPED_MODELS
from shardline.config.documents import script_index
from shardline.config.project import Project
from shardline.config.scripts import is_file
from shardline.core.errors import ConfigError
from shardline.core.files import write_bytes
from shardline.identity import CodeIndex
from shardline.identity.code_index import LIBRARY
from shardline.identity.package_lock import PLATFORM, Pin, normalize, pinned, read_pins

# Names on conda-forge that differ from PyPI's names; `conda.names` adds to them.
_CONDA_NAMES = {
    "brotli": "brotli-python",
    "build": "python-build",
    "duckdb": "python-duckdb",
    "flatbuffers": "python-flatbuffers",
    "graphviz": "python-graphviz",
    "huggingface-hub": "huggingface_hub",
    "jupyter-core": "jupyter_core",
    "matplotlib": "matplotlib-base",
    "msgpack": "msgpack-python",
    "opencv-python": "py-opencv",
    "opencv-python-headless": "py-opencv",
    "tables": "pytables",
    "torch": "pytorch",
    "tzdata": "python-tzdata",
    "xxhash": "python-xxhash",
}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The entry points of a stage's code.

    Attributes:
        jobs: modules of `shardline.pipeline` whose jobs run in the stage's environment.
        programs: modules that those jobs start, or import by a name in the config.
    """

    jobs: tuple[str, ...]
    programs: tuple[str, ...] = ()


def _modules(classes: Iterable[str]) -> set[str]:
    return {path.partition(":")[0] for path in classes}


STAGES = {
    "data": Stage(
        jobs=("job_frame", "dataset_jobs", "prediction_files"),
        programs=("shardline.data.build", "shardline.data.prediction_file", *_modules(SHIPPED_SOURCES.values())),
    ),
    "train": Stage(
        jobs=("job_frame", "started_ranks", "training", "run_jobs", "predicting"),
        programs=(
            *(f"shardline.training.{name}" for name in (
                "fit", "evaluate", "predict", "script_outputs", "rank", "sealed_training",
            )),
            *_modules(SHIPPED_MODELS.values()),
        ),
    ),
    "report": Stage(jobs=("job_frame", "report_job"), programs=("shardline.report",)),
    "tools": Stage(jobs=("job_frame", "environment_jobs")),
}  # fmt: skip


def specs_of(project: Project, env: str) -> list[str]:
    """Return the specs of a stage's conda environment, such as `numpy ==2.4.6`.

    The models, scripts, sources and trackers of the project's config count like
    Shardline's own. Imports without a package in the lock are left out, like
    optional packages.

    Args:
        env: one of `STAGES`.

    Raises:
        ConfigError: the lock pins one of the packages by URL.
    """
    stage = STAGES[env]
    # only imports from elsewhere: the other modules of shardline.pipeline belong to every stage
    imports = {
        name
        for job in stage.jobs
        for name in project.code.module(f"shardline.pipeline.{job}").imports
    }
    entries = {name for name in imports if not name.startswith("shardline.pipeline")}
    entries |= {*stage.programs, *_own_classes(project, env)}
    entries.add("shardline.core.credentials")  # masks every job's output; counts in no identity
    if env == "train":
        entries |= {f"shardline.tracking.backends.{name}" for name in project.runtime.tracking}
    found = [_environment(project, project.code, *sorted(entries))]
    if env == "train":
        for script in sorted(filter(is_file, _paths(project))):
            index = script_index(project.code, project.workdir, script)
            found.append(_environment(project, index, "__main__"))
    names = {**_CONDA_NAMES, **project.conda.names}
    packages = {name for environment in found for name in environment["packages"]}
    locked = [*map(Requirement, project.lock.requirements(packages))]
    if by_url := sorted({f"{one.name} ({pinned(one)})" for one in locked if one.url}):
        raise ConfigError(
            f"the lock pins {', '.join(by_url)}, which conda does not provide; pin a released version, or set "
            "runtime.environment=image"
        )
    versions = sorted(
        # conda versions have no local label, such as a wheel's +cpu
        f"{names.get(name := normalize(one.name), name)} {str(one.specifier).partition('+')[0]}"
        for one in locked
        if one.marker is None or one.marker.evaluate()
    )
    return [f"python ={found[0]['python']}", *versions]


def _environment(project: Project, index: CodeIndex, *entries: str) -> dict[str, Any]:
    """Return the locked packages that these modules import, directly or through other modules."""
    return dict(project.lock.environment(index.closure(*entries)[1]))


def _own_classes(project: Project, env: str) -> set[str]:
    if env == "data":
        return _modules(dataset.source_class for dataset in project.built.values())
    if env == "train":
        with_transforms = {one.source_class for one in project.built.values() if one.python}
        return _modules(path for path in {*_paths(project), *with_transforms} if not is_file(path))
    return set()


def _paths(project: Project) -> set[str]:
    return {path for run in project.runs.values() for path in run.code_paths.values()}


def tell_post_deploy() -> None:
    """Pass Shardline's folder to envs/*.post-deploy.sh, which Snakemake runs in another environment."""
    os.environ["SHARDLINE_LIBRARY"] = str(LIBRARY)


def env_file(project: Project, env: str) -> Path:
    """Return the path of a stage's conda environment file."""
    return project.envs / f"{env}.yaml"


def write_specs(project: Project, env: str) -> None:
    """Write a stage's conda environment file from the lock.

    Raises:
        ConfigError: the file would be Shardline's own, but the lock and models are another project's.
        DataError: the file cannot be written.
    """
    if project.conda.folder is UNSET and project.envs.parent != project.workdir:
        raise ConfigError(
            f"conda.folder is not set, and {project.envs} is Shardline's own; set it to a folder of this project (envs)"
        )
    channels, specs = [*project.conda.channels, "nodefaults"], specs_of(project, env)
    head = (
        f"# Conda environment of the stage {env}, written by `make lock` from the pip lock: Python and the\n"
        "# packages that the stage's code imports. A .pin.txt beside it is its solution.\n"
    )
    document = {"channels": channels, "dependencies": specs}
    text = head + yaml.safe_dump(document, sort_keys=False, width=200)
    write_bytes(env_file(project, env), text.encode())


def read_specs(project: Project, env: str) -> list[str]:
    """Return the specs in a stage's conda environment file.

    Raises:
        ConfigError: the file cannot be read, or its specs do not match the lock.
    """
    path = env_file(project, env)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        given = {str(spec) for spec in document["dependencies"]}
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{path} cannot be read as a conda environment ({reason}); write it with `make lock`"
        ) from None
    wanted = set(specs_of(project, env))
    if given != wanted:
        more, less = sorted(given - wanted), sorted(wanted - given)
        raise ConfigError(
            f"{path} has drifted from the lock: it has {', '.join(more) or 'nothing else'}, "
            f"expected {', '.join(less) or 'nothing more'}; write it again: `make lock` in Shardline's folder, "
            "`snakemake lock_envs` with conda.folder in your own"
        )
    return sorted(given)


def pin_file(project: Project, env: str) -> Path:
    """Return the path of a stage's pin file; Snakemake looks for it by this name."""
    return project.envs / f"{env}.{PLATFORM}.pin.txt"


def existing_pin_file(project: Project, env: str) -> Path:
    """Return the path of a stage's pin file.

    Raises:
        ConfigError: the file is missing.
    """
    path = pin_file(project, env)
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing, from which the environment {env!r} is created; write it with `make lock` (or "
            f"`snakemake lock_envs`) on a machine that reaches conda.channels={project.conda.channels}"
        )
    return path


def write_pins(project: Project, env: str, pins: Iterable[Pin]) -> None:
    """Write a stage's pin file.

    Raises:
        DataError: the file cannot be written.
    """
    lines = [
        f"# The solution of {env}.yaml, written by `make lock`.",
        f"# platform: {PLATFORM}",
        "@EXPLICIT",
        *sorted(pin.line for pin in pins),
    ]
    write_bytes(pin_file(project, env), "".join(f"{line}\n" for line in lines).encode())


def unmet_specs(pins: Sequence[Pin], specs: Iterable[str]) -> list[str]:
    """Return the specs that no pin satisfies, as parsed by rattler."""
    from rattler import BuildString, MatchSpec, PackageRecord

    records = [
        PackageRecord(pin.name, pin.version, BuildString(pin.build), 0, pin.subdir) for pin in pins
    ]
    return [
        spec for spec in specs if not any(MatchSpec(spec).matches(record) for record in records)
    ]


def checked_pins(path: Path, specs: Iterable[str]) -> list[Pin]:
    """Read a pin file, and check that it satisfies the specs of its environment file.

    Raises:
        ConfigError: the file cannot be read, contains a package twice or does not satisfy a spec.
    """
    pins = read_pins(path)
    if len({pin.name for pin in pins}) < len(pins):
        raise ConfigError(f"{path} contains a package twice; write it with `make lock`")
    if unmet := unmet_specs(pins, specs):
        raise ConfigError(
            f"{path} has drifted from its environment file: it does not satisfy {', '.join(unmet)}; "
            "write it again with `make lock`"
        )
    return pins
