"""One executed job in the crate: its tool, its action, and what it read, wrote, ran with and on."""

from collections.abc import Mapping
from typing import Any

from rocrate.model.entity import Entity

from shardline import __version__
from shardline.core.files import read_json
from shardline.provenance.crate.contents import WORKFLOW, Contents
from shardline.provenance.crate.graph import Graph, image, refer
from shardline.provenance.crate.steps import RULES, Step

_SOURCE_FILES = 10  # named with their digests; of more, the manifest alone does


def describe_step(graph: Graph, workflow: Entity, contents: Contents, step: Step) -> Entity:
    """Add one executed job: its tool, its step of the workflow, its action, and what controlled it."""
    record, rule = step.action, step.rule
    tool = _tool(graph, workflow, rule)
    inputs = _files(graph, tool, contents, step.inputs, "input")
    settings = settings_of(graph, step)
    for value in settings:
        graph.exemplify(value, graph.parameter(workflow, "input", value["name"], "PropertyValue"))
    outputs = _files(graph, tool, contents, step.outputs, "output")
    action = graph.local("action", record["id"], "CreateAction")
    for key, value in {
        "name": record["id"],
        "description": f"{RULES[rule]}. Command: {' '.join(record['command'])}",
        "startTime": time_of(record["started"]),
        "endTime": time_of(record["ended"]),
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "agent": graph.person(record["agent"]),
        "instrument": tool,
        "object": refer([*inputs, *settings]),
        "result": refer(outputs),
        "environment": refer(_environment(graph, record)),
        "location": _machine(graph, step),
        "containerImage": _image(graph, contents, record.get("image")),
        "resourceUsage": _usage(graph, step),
    }.items():
        if value is not None:
            action[key] = value
    control = graph.local(
        "control", record["id"], "ControlAction", name=f"Snakemake runs {record['id']}",
        instrument=graph.get(_step_id(rule)), object=action,
    )  # fmt: skip
    graph.link(graph.root, "mentions", action)
    return control


def _tool(graph: Graph, workflow: Entity, rule: str) -> Entity:
    path = f"{WORKFLOW}/scripts/{rule}.py"
    tool = graph.entity(path, "File")  # which is there: it is of the workflow's files
    if graph.get(_step_id(rule)) is None:
        for key, value in {"name": rule, "softwareVersion": __version__, "url": path}.items():
            tool[key] = value
        tool["description"] = RULES[rule]
        tool.properties()["@type"] = ["File", "SoftwareApplication"]
        step = graph.entity(
            _step_id(rule), "HowToStep", name=rule, description=RULES[rule],
            position=str(list(RULES).index(rule) + 1), workExample=tool,
        )  # fmt: skip
        graph.link(workflow, "hasPart", tool)
        graph.link(workflow, "step", step)
    return tool


def _step_id(rule: str) -> str:
    return f"{WORKFLOW}/Snakefile#{rule}"


def _files(
    graph: Graph, tool: Entity, contents: Contents, named: Mapping[str, list[str]], direction: str
) -> list[Entity]:
    """Return what a job read or wrote, each as an example of the tool's parameter."""
    found = []
    for name, paths in named.items():
        if name.startswith("source/"):
            found.append(_source(graph, contents, name.removeprefix("source/")))
        for path in paths:
            what = graph.get(path)
            if what is None:
                continue
            kind = "Dataset" if path.endswith("/") else "File"
            graph.exemplify(what, graph.parameter(tool, direction, name, kind))
            found.append(what)
    return found


def _source(graph: Graph, contents: Contents, dataset: str) -> Entity:
    identity = contents.manifests[dataset].identity
    digests = identity.get("source") or {}
    kind = identity.get("settings", {}).get("source", {}).get("type", "A source")
    files = [f" {name}: SHA-256 {digest}." for name, digest in digests.items()]
    if len(files) > _SOURCE_FILES:
        files = [f" {len(files)} files; their digests are in the manifest."]
    return graph.local(
        "source", dataset, "CreativeWork", name=f"Source of {dataset}",
        description=f"{kind}; not in this crate.{''.join(files)}",
    )  # fmt: skip


def _environment(graph: Graph, record: Mapping[str, Any]) -> list[Entity]:
    """Return versions of software and the recorded environment variables."""
    versions = [
        graph.value("software", name, version) for name, version in record["software"].items()
    ]
    git = record.get("git") or {}
    commit = git.get("commit") and f"{git['commit']}{'-dirty' if git.get('dirty') else ''}"
    variables = [
        graph.value("variable", name, value) for name, value in record["variables"].items()
    ]
    return [*versions, *([graph.value("git", "commit", commit)] if commit else []), *variables]


def _machine(graph: Graph, step: Step) -> Entity:
    """Return the machine of a job, as an IndividualProduct: what ran there has no other place for it."""
    record, devices = step.action, sorted(set(step.devices))
    size = f"{record['num_cpus']} CPUs, {record['memory_bytes']} bytes of memory"
    properties = [
        graph.value("hardware", "num_cpus", record["num_cpus"], unitText="CPUs"),
        graph.value("hardware", "memory", record["memory_bytes"], unitCode="AD", unitText="bytes"),
        *(graph.value("hardware", "device", device) for device in devices),
    ]
    name = "/".join([record["host"], str(record["num_cpus"]), *devices])
    return graph.local(
        "machine", name, "IndividualProduct", name=record["host"],
        description=", ".join([size, *devices]), additionalProperty=properties,
    )  # fmt: skip


def _image(graph: Graph, contents: Contents, digest: str | None) -> Entity | None:
    if not digest:
        return None
    path = contents.project.environment
    known = path and path.name == "image.json" and path.exists()
    return image(graph, digest, read_json(path, remedy="") if path and known else {})


def _usage(graph: Graph, step: Step) -> Entity | None:
    if step.peak_bytes is None:
        return None
    return graph.value(
        "usage", "peak_rss_bytes", step.peak_bytes,
        propertyID="https://en.wikipedia.org/wiki/Resident_set_size", unitCode="AD", unitText="bytes",
    )  # fmt: skip


def settings_of(graph: Graph, step: Step) -> list[Entity]:
    """Return what a job was set to, as PropertyValues."""
    return [graph.value("setting", key, value) for key, value in step.settings.items()]


def time_of(recorded: str) -> str:
    """Return a recorded time as the profile's check wants it: an offset, no Z."""
    return recorded.replace("Z", "+00:00")
