"""The request to Azure ML for one job, built by pure functions."""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from snakemake_executor_plugin_azureml.errors import AzureMLError
from snakemake_executor_plugin_azureml.options import JobResources, Mount, read_resources
from snakemake_executor_plugin_azureml.settings import ExecutorSettings

CODE_TAG = "snakemake_code"
# azureml-core sends tags in a second request, which may be lost; variables are part of the job.
CODE_VARIABLE = "SNAKEMAKE_AZUREML_CODE"
# A job cannot find out in which image it runs.
IMAGE_VARIABLE = "SNAKEMAKE_AZUREML_IMAGE"
NODE = "python -m snakemake_executor_plugin_azureml.node"

# Options of a spawned job that differ between two Snakemakes that request the same job.
_PASSING = {"--attempt", "--unneeded-temp-files", "--local-groupid"}


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """The environment of a job: already registered, or to be registered from an image.

    Attributes:
        version: version; empty means the latest.
        image: image; empty if the environment is already registered.
        conda: content of the conda environment file; may be empty.
    """

    name: str
    version: str = ""
    image: str = ""
    conda: str = ""


@dataclass(frozen=True, kw_only=True)
class JobRequest(JobResources):
    """A job, in terms that both SDKs can express.

    Attributes:
        name: name in the workspace, `{stem}-{number}`.
        stem: first part of the name, from the job's outputs; the same for every attempt.
        code: digest of the snapshot, the command and its settings.
    """

    name: str
    stem: str
    code: str
    experiment: str
    command: str
    environment: EnvironmentRequest

    def numbered(self, number: int) -> "JobRequest":
        """Return the request with the name of an attempt, counted from 1."""
        return replace(self, name=f"{self.stem}-{number}")

    def as_json(self) -> str:
        """Return the whole request as JSON with sorted keys."""
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


@dataclass(frozen=True, kw_only=True)
class Target:
    """The outputs of a job.

    Attributes:
        rule: name of the rule, or of the group.
        outputs: output files, as the storage names them.
        prefix: storage prefix, which distinguishes workflows whose jobs have no outputs.
    """

    rule: str
    wildcards: Mapping[str, str]
    outputs: tuple[str, ...]
    prefix: str

    @property
    def stem(self) -> str:
        """Job name without its number; Azure ML permits letters, digits, - and _."""
        identity = [
            self.rule,
            sorted(self.wildcards.items()),
            sorted(self.outputs),
            self.prefix,
        ]
        rule = re.sub(r"[^A-Za-z0-9_]", "_", self.rule)[:40]
        return f"{rule if rule[:1].isalnum() else 'job' + rule}-{_digest(identity, 12)}"


def make_request(
    settings: ExecutorSettings,
    target: Target,
    resources: Mapping[str, object],
    *,
    command: str,
    snapshot: str,
    environment: EnvironmentRequest,
    variables: Mapping[str, str],
    workflow: str,
    attempt: int,
) -> JobRequest:
    """Return the request for a job.

    Args:
        settings: settings after `check_settings`.
        target: the job's outputs, which determine its name.
        resources: the job's resources, including Azure ML's.
        command: shell command of Snakemake's own job.
        snapshot: digest of the code snapshot.
        variables: environment variables of the job; Azure ML stores them in clear text.
        workflow: tag of all jobs of the workflow, for listing them.
        attempt: Snakemake's number of the attempt, from 1.

    Raises:
        AzureMLError: a resource is invalid on Azure ML; the message names it.
    """
    wanted = read_resources(settings, resources, rule=target.rule)
    request = JobRequest(
        **{**vars(wanted), "variables": {**variables, **wanted.variables}},
        name=f"{target.stem}-1",
        stem=target.stem,
        code="",
        experiment=settings.experiment,
        command=node_command(settings, command, wanted.mounts),
        environment=environment,
    )
    code = code_digest(request, command, snapshot)
    tags = {
        **wanted.tags,
        workflow: "1",
        "snakemake_rule": target.rule,
        "snakemake_attempt": str(attempt),
        CODE_TAG: code,
    }
    variables = {**request.variables, CODE_VARIABLE: code}
    if environment.image:
        variables[IMAGE_VARIABLE] = environment.image
    return replace(request, code=code, tags=tags, variables=variables)


def node_command(settings: ExecutorSettings, command: str, mounts: Iterable[Mount]) -> str:
    """Return the command of every process of the job."""
    words = [NODE, "run", "--wait-s", str(settings.node_wait_s)]
    for mount in mounts:
        words += ["--mount", mount.argument(settings.sdk)]
    if settings.follower_command:
        words += ["--follower-command", _base64(settings.follower_command)]
    return " ".join([*words, _base64(command)])


def code_digest(request: JobRequest, command: str, snapshot: str) -> str:
    """Return the digest that identifies a running job's code, command and settings.

    Two Snakemakes write the same options in different order (Snakemake keeps some in
    sets), and some options count attempts. Neither changes the digest. The values of
    variables are left out, since the digest of a short secret would reveal it.
    """
    fixed = asdict(request)
    for name in ("name", "stem", "code", "tags", "command"):
        del fixed[name]
    fixed["variables"] = sorted(request.variables)
    fixed["command"] = _lasting_words(command)
    fixed["snapshot"] = snapshot
    return _digest(fixed, 16)


def environment_of(settings: ExecutorSettings, read: Mapping[str, str]) -> EnvironmentRequest:
    """Return the environment in the settings.

    Args:
        read: content of the conda file and of the lock, by the setting's name.
    """
    if settings.environment:
        name, _, version = settings.environment.partition(":")
        return EnvironmentRequest(name=name, version=version)
    image, conda = settings.image or "", read.get("conda_file", "")
    digest = _digest({"image": image, "conda": conda, "lock": read.get("lock", "")}, 12)
    return EnvironmentRequest(name=f"snakemake-{digest}", version="1", image=image, conda=conda)


def check_no_secrets(request: JobRequest, job: str, secrets: Mapping[str, str]) -> None:
    """Reject a request that would show a secret to everyone in the workspace.

    Args:
        job: shell command of Snakemake's own job, which the request contains in base64.
        secrets: values to look for, by variable.

    Raises:
        AzureMLError: the message names the variable, never its value.
    """
    shown = {
        "command": f"{job} {request.command}",
        "tags": json.dumps(dict(request.tags)),
        "docker_args": request.docker_args,
        "environment": json.dumps(asdict(request.environment)),
    }
    for place, text in shown.items():
        for name, value in secrets.items():
            if value in text:
                raise AzureMLError(
                    f"the {place} of job {request.name} would contain the secret of environment "
                    f"variable {name}, which Azure ML shows to everyone in the workspace; pass it "
                    "to the job as a variable (azureml-pass-envvars) or through an identity"
                )


def _lasting_words(command: str) -> list[str]:
    words, is_passing = [], False
    for word in shlex.split(command):
        if word.startswith("--"):
            is_passing = word in _PASSING
        if not is_passing:
            words.append(word)
    return sorted(words)


def _digest(value: Any, length: int) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
