"""Check of a Snakemake profile: options and names of rules."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from shardline.core.errors import ConfigError
from shardline.core.package import workflow_folder
from shardline.core.suggest import did_you_mean

_BY_RULE = ("set-resources", "set-threads")
_PLUGINS = {
    "executor": "snakemake_executor_plugin_",
    "default-storage-provider": "snakemake_storage_plugin_",
}
_ARRAYS, _PARTITIONS = "slurm-array-jobs", "slurm-partition-config"
_EXCLUDED = "slurm-exclude-failed-nodes"
# the plugin divides the text at each comma, also within n[1,3]
_NODE = re.compile(r"\s*[\w.-]+(\[[\d-]+\])?\s*")
_OWN_EXECUTORS = ("local", "dryrun", "touch")
# no package index has the plugin for Azure ML
_REMEDIES = {
    "azureml": "run `make env-azureml` in a clone of Shardline, and activate .venv-azureml (docs/how-to/install.md)",
    "slurm": "run pip install 'shardline[slurm]'",
}


def read_profile(file: Path) -> dict[str, Any]:
    """Read a profile.

    Raises:
        ConfigError: The file is not YAML, or not a table.
    """
    try:
        profile = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{file} cannot be read ({reason}); write it as YAML") from None
    if not isinstance(profile or {}, dict):
        raise ConfigError(f"{file} contains no table of options; write them as key: value")
    return profile or {}


def problems_of_profile(
    profile: Mapping[str, object], file: Path, options: Iterable[str], installed: Iterable[str]
) -> Iterator[str]:
    """Yield sentences about options that Snakemake would reject or ignore.

    The values under `config` are checked with the config itself.

    Args:
        options: Options of Snakemake and its installed plugins, without dashes.
        installed: Names of the modules of installed plugins.
    """
    known = {*options, "config"}
    absent: list[str] = []
    for key, prefix in _PLUGINS.items():
        name = str(profile.get(key, ""))
        if name and name not in _OWN_EXECUTORS and prefix + name.replace("-", "_") not in installed:
            absent += [f"{name}-", f"storage-{name}-"]
            package = (prefix + name).replace("_", "-")
            remedy = _REMEDIES.get(name, f"pip install {package}")
            yield (
                f"{file}: {key}={name} needs the package {package}, which is not installed; "
                f"{remedy}"
            )
    for key in profile:
        name = str(key)
        if name not in known and not name.startswith(tuple(absent) or ("\0",)):
            remedy = did_you_mean(name, known, otherwise="see `snakemake --help`")
            yield f"{file}: {name} is no option of Snakemake or of its installed plugins; {remedy}"
    rules = rule_names()
    yield from _problems_of_slurm(profile, file, rules)
    for key in _BY_RULE:
        named = profile.get(key) or {}
        for rule in named if isinstance(named, Mapping) else ():
            if rule not in rules:
                remedy = did_you_mean(
                    str(rule), rules, otherwise=f"rules are {', '.join(sorted(rules))}"
                )
                yield f"{file}: {key}.{rule} names no rule of Shardline's; {remedy}"


def _problems_of_slurm(profile: Mapping[str, object], file: Path, rules: set[str]) -> Iterator[str]:
    """Yield sentences about options of the Slurm plugin with which it fails late, or which have no effect."""
    arrays = str(profile.get(_ARRAYS) or "").replace(";", ",").split(",")
    for rule in filter(None, map(str.strip, arrays)):
        if rule not in {*rules, "all"}:
            known = f"rules are {', '.join(sorted(rules))}"
            remedy = did_you_mean(rule, rules, otherwise=f"{known}, or all")
            yield f"{file}: {_ARRAYS}: {rule} names no rule of Shardline's; {remedy}"
    excluded = profile.get(_EXCLUDED)
    if excluded is not None and not (
        isinstance(excluded, str) and all(map(_NODE.fullmatch, excluded.split(",")))
    ):
        yield (
            f"{file}: {_EXCLUDED}={excluded!r}, expected names of nodes with commas between them; write n7,n12"
        )
    if (given := profile.get(_PARTITIONS)) is None:
        return
    yield from _problems_of_partitions(Path(str(given)), file)
    for key in ("default-resources", *(f"set-resources.{rule}" for rule in sorted(rules))):
        table: object = profile
        for word in key.split("."):
            table = table.get(word) if isinstance(table, Mapping) else None
        if isinstance(table, Mapping) and "slurm_partition" in table:
            yield (
                f"{file}: {_PARTITIONS} has no effect on jobs with {key}.slurm_partition, which names their "
                "partition; drop one of them"
            )


def _problems_of_partitions(partitions: Path, file: Path) -> Iterator[str]:
    """Yield sentences about a file of partitions that the Slurm plugin cannot use."""
    try:
        found = (read_profile(partitions) or {}).get("partitions")
    except ConfigError as error:
        yield f"{file}: {_PARTITIONS}: {error}"
        return
    if not isinstance(found, Mapping) or not found:
        yield (
            f"{file}: {_PARTITIONS}: {partitions} has no table `partitions`; write the limits of each partition "
            "below its name, such as max_runtime: 60"
        )
        return
    try:
        from snakemake_executor_plugin_slurm.partitions import PartitionLimits
    except ImportError:  # the plugin is missing, as another sentence says, or is older
        return
    known = {*PartitionLimits.__dataclass_fields__, "cluster", "clusters", "slurm_cluster"}
    for name, limits in found.items():
        for limit in limits if isinstance(limits, Mapping) else ("",):
            if limit not in known:
                remedy = did_you_mean(
                    str(limit), known, otherwise=f"limits are {', '.join(sorted(known))}"
                )
                yield f"{file}: {_PARTITIONS}: {partitions}: {name}.{limit} is no limit of the plugin; {remedy}"


def rule_names() -> set[str]:
    """Return the names of the rules in the workflow and in the project's Snakefile."""
    shipped = workflow_folder()
    files = [shipped / "Snakefile", *(shipped / "rules").glob("*.smk"), Path("Snakefile")]
    lines = [line for file in files if file.exists() for line in file.read_text().splitlines()]
    named = [line.split()[1] for line in lines if line.startswith(("rule ", "checkpoint "))]
    return {name.rstrip(":") for name in named}


def snakemake_options() -> tuple[set[str], set[str]]:
    """Return the options of Snakemake and its installed plugins, and the names of the plugins' modules."""
    import pkgutil

    from snakemake.cli import get_argument_parser

    parser = get_argument_parser()
    written = [option for action in parser._actions for option in action.option_strings]
    modules = {one.name for one in pkgutil.iter_modules() if one.name.startswith("snakemake_")}
    return {option[2:] for option in written if option.startswith("--")}, modules
