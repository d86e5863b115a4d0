"""A report's runs as a Provenance Run Crate 0.5, which extends RO-Crate 1.1.

The profile: https://w3id.org/ro/wfrun/provenance/0.5. The root is the folder of
the project, so that every file has the path in the crate that it has there.
"""

from collections.abc import Mapping
from typing import Any

from rocrate.model.entity import Entity

from shardline import __version__
from shardline.provenance.crate.citation import (
    authors_of,
    license_of,
    publisher_of,
    read_citation,
    spdx,
)
from shardline.provenance.crate.contents import CONFIG, WORKFLOW, Contents, shards_folder
from shardline.provenance.crate.executed import describe_step, settings_of, time_of
from shardline.provenance.crate.graph import Graph, refer
from shardline.provenance.crate.metadata import seal_crate
from shardline.provenance.crate.steps import Step, find_steps

_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
_BIOSCHEMAS = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"


def describe(contents: Contents, report_action: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the crate's metadata; the same files give the same document.

    Args:
        report_action: record of the job that rendered the report.
    """
    steps = find_steps(contents, report_action)
    newest = max((step.action for step in steps), key=lambda action: action["ended"], default={})
    engine = newest.get("software", {}).get("snakemake", "unknown")
    graph = Graph()
    _describe_files(graph, contents)
    workflow = _describe_workflow(graph, contents, engine)
    _describe_root(graph, contents, steps)
    actions = [(step, describe_step(graph, workflow, contents, step)) for step in steps]
    if actions:
        _describe_run(graph, workflow, actions, contents, engine)
    return seal_crate(graph.document())


def _describe_files(graph: Graph, contents: Contents) -> None:
    for path, item in contents.items.items():
        if path not in (f"{WORKFLOW}/Snakefile", "README.md"):
            graph.file(path, item)
    graph.file("README.md", contents.items["README.md"], about=graph.root)
    for dataset, manifest in contents.manifests.items():
        folder = shards_folder(dataset)
        where = (
            "" if contents.with_data else f" Not in this crate; in the store it is {folder[6:]}."
        )
        graph.folder(
            folder,
            is_here=contents.with_data,
            name=f"Shards of {dataset}",
            description=f"{len(manifest.shards)} shards, {manifest.bytes} bytes; its manifest has rows, bytes "
            f"and BLAKE3 digest of each.{where}",
            subjectOf=graph.get(str(contents.paths.manifest(dataset))),
        )


def _describe_workflow(graph: Graph, contents: Contents, engine: str) -> Entity:
    path = f"{WORKFLOW}/Snakefile"
    item = contents.items[path]
    properties = {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
        "name": "Shardline",
        "description": "From a table of experiments to shards, distributed training, evaluation and a report.",
        "version": __version__,
        "url": path,
        "encodingFormat": "text/x-snakemake",
        "sha256": item.sha256,
        "contentSize": str(item.bytes),
        "conformsTo": {"@id": _BIOSCHEMAS},
        "license": spdx(graph, "MIT"),
        "softwareRequirements": graph.get(f"{WORKFLOW}/{contents.project.lock_file.name}"),
    }
    return graph.workflow(path, engine, **properties)


def _describe_root(graph: Graph, contents: Contents, steps: list[Step]) -> None:
    cited = read_citation(contents)
    profiles = [
        graph.entity(url, "CreativeWork", name=name, version=url.rpartition("/")[2])
        for url, name in _PROFILES.items()
    ]
    runs = len(contents.runs)
    root = graph.root
    root["conformsTo"] = profiles
    root["name"] = cited.get("title") or f"Shardline report {contents.project.report.parent.name}"
    root["description"] = cited.get("abstract") or (
        f"{runs} trained and evaluated runs over {len(contents.manifests)} datasets, the report that compares "
        "them, and every job that made them."
    )
    # of all that is known to have ended, so that the same files give the same date
    root["datePublished"] = max(
        (time_of(step.action["ended"]) for step in steps), default="1970-01-01"
    )
    root["license"] = license_of(graph, cited)
    authors = authors_of(graph, cited) or [graph.person(step.action["agent"]) for step in steps]
    if made_by := refer(authors):
        root["author"] = made_by
    if publisher := publisher_of(authors):
        root["publisher"] = publisher


def _describe_run(
    graph: Graph,
    workflow: Entity,
    actions: list[tuple[Step, Entity]],
    contents: Contents,
    engine: str,
) -> None:
    """Add the execution of the workflow as a whole, and Snakemake as what organised it."""
    steps = [step for step, _ in actions]
    started = min(time_of(step.action["started"]) for step in steps)
    ended = max(time_of(step.action["ended"]) for step in steps)
    agents = refer(graph.person(step.action["agent"]) for step in steps)
    asked = [*(graph.get(path) for path in (str(CONFIG), contents.project.table))]
    report = [
        graph.get(path) for path in contents.items if path.startswith(f"{contents.report_folder}/")
    ]
    settings = {value.id: value for step in steps for value in settings_of(graph, step)}
    for given, direction in ((asked, "input"), (report, "output")):
        for file in filter(None, given):
            graph.exemplify(file, graph.parameter(workflow, direction, file["name"], "File"))
    run = graph.local(
        "run", contents.project.report.parent.name, "CreateAction",
        name="The run of the workflow", description="All jobs behind this report, whenever they ran.",
        startTime=started, endTime=ended, agent=agents, instrument=workflow,
        actionStatus="http://schema.org/CompletedActionStatus",
        object=refer([*filter(None, asked), *settings.values()]), result=refer(filter(None, report)),
    )  # fmt: skip
    graph.link(graph.root, "mentions", run)
    graph.local(
        "organize", contents.project.report.parent.name, "OrganizeAction",
        name=f"Snakemake {engine}", instrument=_snakemake(graph, engine), agent=agents,
        startTime=started, endTime=ended, object=refer(control for _, control in actions), result=run,
    )  # fmt: skip


def _snakemake(graph: Graph, version: str) -> Entity:
    """Return the program that ran the jobs."""
    url = f"https://snakemake.readthedocs.io/en/v{version}/"
    return graph.entity(
        url, "SoftwareApplication", name="Snakemake", softwareVersion=version, url=url
    )
