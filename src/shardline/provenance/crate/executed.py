"""Describe an executed job in a crate: tool, action, files, environment and machine."""

from rocrate.model.entity import Entity

from shardline import __version__
from shardline.core.files import read_json
from shardline.provenance.crate.contents import CONFIG, WORKFLOW, Contents
from shardline.provenance.crate.entities import Entities, image, refer
from shardline.provenance.nodes import ActionNode
from shardline.provenance.rules import ORDER, RULES, SHORTER, SOURCE, WEIGHTS
from shardline.records.jobs import JobRecord
from shardline.records.origins import Continued
from shardline.records.trainings import TrainingProvenance

_SOURCE_FILES = 10  # listed with digests; more files are only in the manifest


def describe_job(
    entities: Entities, workflow: Entity, contents: Contents, job: ActionNode
) -> Entity:
    """Add an executed job with its tool, workflow step, action and control action."""
    record, rule = job.recorded, job.rule
    tool = _tool(entities, workflow, rule)
    inputs = _files(entities, tool, contents, job, "input")
    settings = settings_of(entities, job)
    for value in settings:
        entities.exemplify(
            value, entities.parameter(workflow, "input", value["name"], "PropertyValue")
        )
    outputs = _files(entities, tool, contents, job, "output")
    action = entities.local("action", record.id, "CreateAction")
    for key, value in {
        "name": record.id,
        "description": f"{RULES[rule].purpose}. Command: {' '.join(record.command)}",
        "startTime": time_of(record.started),
        "endTime": time_of(record.ended),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "agent": entities.person(record.agent),
        "instrument": tool,
        "object": refer([*inputs, *settings]),
        "result": refer(outputs),
        "environment": refer(_environment(entities, record)),
        "location": _machine(entities, job),
        "containerImage": _image(entities, contents, record.image),
        "resourceUsage": _usage(entities, job),
    }.items():
        if value is not None:
            action[key] = value
    control = entities.local(
        "control", record.id, "ControlAction", name=f"Snakemake runs {record.id}",
        instrument=entities.get(_step_id(rule)), object=action,
    )  # fmt: skip
    entities.link(entities.root, "mentions", action)
    return control


def _tool(entities: Entities, workflow: Entity, rule: str) -> Entity:
    path = f"{WORKFLOW}/scripts/{rule}.py"
    tool = entities.entity(path, "File")  # exists already among the files of the workflow
    if entities.get(_step_id(rule)) is None:
        for key, value in {"name": rule, "softwareVersion": __version__, "url": path}.items():
            tool[key] = value
        tool["description"] = RULES[rule].purpose
        tool.properties()["@type"] = ["File", "SoftwareApplication"]
        step = entities.entity(
            _step_id(rule), "HowToStep", name=rule, description=RULES[rule].purpose,
            position=str(ORDER.index(rule) + 1), workExample=tool,
        )  # fmt: skip
        entities.link(workflow, "hasPart", tool)
        entities.link(workflow, "step", step)
    return tool


def _step_id(rule: str) -> str:
    return f"{WORKFLOW}/Snakefile#{rule}"


def _files(
    entities: Entities, tool: Entity, contents: Contents, job: ActionNode, direction: str
) -> list[Entity]:
    """Return input or output files of a job in the crate, linked to the parameters of the tool."""
    found = []
    for parameter, names in (job.inputs if direction == "input" else job.outputs).items():
        if parameter == SOURCE:
            found.append(_source(entities, contents, job.ids["dataset"]))
        if parameter == WEIGHTS:
            found += [_weights(entities, name) for name in names]
        if parameter == SHORTER and job.training and job.training.continued:
            found.append(_state(entities, job.training.continued))
        for path in (path for name in names for path in _paths(contents, parameter, job, name)):
            if what := entities.get(path):
                kind = "Dataset" if path.endswith("/") else "File"
                entities.exemplify(what, entities.parameter(tool, direction, parameter, kind))
                found.append(what)
    return found


def _paths(contents: Contents, parameter: str, job: ActionNode, name: str) -> list[str]:
    """Return the paths in the crate of a declared name."""
    if job.rule == "resolve_run":
        return [{"config": str(CONFIG), "runs": contents.project.table}.get(parameter, name)]
    if name == f"{contents.report_folder}/":
        return [path for path in contents.items if path.startswith(name)]
    return [name]


def _source(entities: Entities, contents: Contents, dataset: str) -> Entity:
    identity = contents.manifests[dataset].identity
    digests = identity.get("source") or {}
    kind = identity.get("settings", {}).get("source", {}).get("type", "A source")
    files = [f" {name}: SHA-256 {digest}." for name, digest in digests.items()]
    if len(files) > _SOURCE_FILES:
        files = [f" {len(files)} files; the manifest lists their digests."]
    return entities.local(
        "source", dataset, "CreativeWork", name=f"Source of {dataset}",
        description=f"{kind}; not in this crate.{''.join(files)}",
    )  # fmt: skip


def _weights(entities: Entities, name: str) -> Entity:
    description = f"A {name} (its digest), from which a training began; not in this crate."
    return entities.local("weights", name, "CreativeWork", name=name, description=description)


def _state(entities: Entities, of: Continued) -> Entity:
    return entities.local(
        "state", f"{of.run}-{of.step}", "CreativeWork", name=f"Training checkpoint of run {of.run}, step {of.step}",
        description=f"The training continued it, which saved {of.seconds:.0f} s and {of.device_hours:.3g} device "
        "hours; not in this crate.",
    )  # fmt: skip


def _environment(entities: Entities, record: JobRecord) -> list[Entity]:
    """Return software versions, git commit and recorded environment variables."""
    versions = [
        entities.value("software", name, version) for name, version in record.software.items()
    ]
    git = record.git
    commit = git.commit and f"{git.commit}{'-dirty' if git.dirty else ''}"
    variables = [
        entities.value("variable", name, value) for name, value in record.variables.items()
    ]
    return [*versions, *([entities.value("git", "commit", commit)] if commit else []), *variables]


def _machine(entities: Entities, job: ActionNode) -> Entity:
    """Return the machine of a job as an IndividualProduct, since RO-Crate has no other type for it."""
    record, devices = job.recorded, sorted(_devices(job.training))
    size = f"{record.num_cpus} CPUs, {record.memory_bytes} bytes of memory"
    properties = [
        entities.value("hardware", "num_cpus", record.num_cpus, unitText="CPUs"),
        entities.value("hardware", "memory", record.memory_bytes, unitCode="AD", unitText="bytes"),
        *(entities.value("hardware", "device", device) for device in devices),
    ]
    name = "/".join([record.host, str(record.num_cpus), *devices])
    return entities.local(
        "machine", name, "IndividualProduct", name=record.host,
        description=", ".join([size, *devices]), additionalProperty=properties,
    )  # fmt: skip


def _image(entities: Entities, contents: Contents, digest: str | None) -> Entity | None:
    if not digest:
        return None
    path = contents.project.environment
    known = path and path.name == "image.json" and path.exists()
    return image(entities, digest, read_json(path, remedy="") if path and known else {})


def _devices(training: TrainingProvenance | None) -> set[str]:
    """Return the names of the GPUs or CPUs of the ranks of a training."""
    ranks = (training.world.ranks or []) if training else []
    return {rank.device_name or rank.device for rank in ranks}


def _usage(entities: Entities, job: ActionNode) -> Entity | None:
    """Return the peak memory of a rank over a training; None if it was not measured."""
    measured = job.training.resources if job.training else None
    peaks = [rank.peak_rss_bytes for rank in (measured.ranks if measured else [])]
    if not peaks:
        return None
    return entities.value(
        "usage", "peak_rss_bytes", max(peaks),
        propertyID="https://en.wikipedia.org/wiki/Resident_set_size", unitCode="AD", unitText="bytes",
    )  # fmt: skip


def settings_of(entities: Entities, job: ActionNode) -> list[Entity]:
    """Return the settings of a job as PropertyValues."""
    return [entities.value("setting", key, value) for key, value in job.settings.items()]


def time_of(recorded: str) -> str:
    """Return a recorded time with an offset instead of Z, as the validator of the profile requires."""
    return recorded.replace("Z", "+00:00")
