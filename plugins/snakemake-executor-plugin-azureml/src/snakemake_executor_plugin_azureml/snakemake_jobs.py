"""Target, resources, command and variables of Snakemake's jobs."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from snakemake_interface_executor_plugins.utils import format_cli_arg

from snakemake_executor_plugin_azureml.errors import AzureMLError, is_secret_name
from snakemake_executor_plugin_azureml.job_request import Target

_NOT_ADDED = {"nodes", "azureml_processes_per_node", "azureml_priority"}


def target_of(job: Any, prefix: str) -> Target:
    """Return the outputs and the rule of a job; for a group, of all its members together.

    Args:
        job: Snakemake's job.
        prefix: default storage prefix.
    """
    members = sorted(job.jobs, key=str) if job.is_group() else [job]
    wildcards = {}
    for number, member in enumerate(members):
        label = f"{number}." if job.is_group() else ""
        for name, value in dict(member.wildcards).items():
            wildcards[f"{label}{name}"] = str(value)
    outputs = tuple(_stored(path) for member in members for path in member.output)
    rule = "-".join(sorted({member.rule.name for member in members}))
    return Target(rule=rule, wildcards=wildcards, outputs=outputs, prefix=prefix)


def resources_of(job: Any) -> dict[str, object]:
    """Return a job's resources.

    For a group, Snakemake adds up the resources of members that could run at the same time. On Azure ML
    the members run one after the other on all nodes, so resources of the start are the members' maximum.
    """
    resources = dict(job.resources.items())
    if job.is_group():
        for name in resources.keys() & _NOT_ADDED:
            asked = [member.resources.get(name, 0) for member in job.jobs]
            if all(isinstance(value, int) for value in asked):
                resources[name] = max(asked)
    return resources


def portable_command(command: str, folder: str | Path | None) -> str:
    """Return the command of Snakemake's own job without this machine's working folder.

    Args:
        folder: the value of `--directory`; on the node it is the snapshot's root.
    """
    if folder is None:
        return command
    return command.replace(format_cli_arg("--directory", folder), "")


def check_paths(workflow: Any) -> None:
    """Reject files outside of the working folder, since the code snapshot does not contain them.

    Raises:
        AzureMLError: a file is outside; the message names it.
    """
    files = {"Snakefile": [workflow.main_snakefile]}
    files["configuration file"] = list(workflow.overwrite_configfiles)
    for kind, paths in files.items():
        for path in paths:
            if os.path.relpath(path).startswith(os.pardir):  # the node looks for it by this path
                raise AzureMLError(
                    f"the {kind} {path} is outside of the working folder {Path.cwd()}, which "
                    "jobs get as their code; start Snakemake in the folder that contains it"
                )


def passed_variables(
    given: Mapping[str, str],
    declared: Sequence[str],
    names: str | None,
    warn: Callable[[str], None],
) -> dict[str, str]:
    """Return the environment variables to pass to jobs.

    Args:
        given: variables that Snakemake would pass: the workflow's declared variables, and the
            settings of storage plugins.
        declared: names of the workflow's declared variables.
        names: the setting `azureml-pass-envvars`.
        warn: called with a message about variables that are not passed.

    Raises:
        AzureMLError: the setting names a variable that is not declared.
    """
    wanted = set(re.split(r"[\s,]+", names.strip())) - {""} if names else set()
    if unknown := sorted(wanted - {"all"} - given.keys()):
        raise AzureMLError(
            f"azureml-pass-envvars names {', '.join(unknown)}, which the workflow does not declare "
            "with envvars: and no storage plugin sets; declare the variable, or remove it"
        )
    # Storage plugins need their settings, which name accounts and endpoints, to find files.
    settings = {
        name for name in given if name.startswith("SNAKEMAKE_STORAGE_") and not is_secret_name(name)
    }
    passed = given.keys() if "all" in wanted else (wanted | settings) & given.keys()
    behind = sorted(set(declared) & given.keys() - passed)
    if behind:
        warn(
            f"environment variables are not passed to jobs: {', '.join(behind)}; Azure ML would store their "
            "values in clear text, so list variables that may be stored in azureml-pass-envvars, and "
            "provide the others through the image or an identity"
        )
    return {name: given[name] for name in sorted(passed)}


def _stored(path: Any) -> str:
    storage = getattr(path, "storage_object", None)
    return str(storage.query) if getattr(path, "is_storage", False) and storage else str(path)
