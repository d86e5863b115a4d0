"""Describe the runs of a report as a Provenance Run Crate 0.5, which extends RO-Crate 1.1.

Profile: https://w3id.org/ro/wfrun/provenance/0.5. Paths in the crate are relative to the project's folder.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rocrate.model.entity import Entity

from shardline import __version__
from shardline.config.layout import ResultsLayout
from shardline.provenance.crate.citation import (
    authors_of,
    license_of,
    publisher_of,
    read_citation,
    spdx,
)
from shardline.provenance.crate.contents import CONFIG, WORKFLOW, Contents, shards_folder
from shardline.provenance.crate.entities import Entities, refer
from shardline.provenance.crate.executed import describe_job, settings_of, time_of
from shardline.provenance.crate.metadata import seal_crate
from shardline.provenance.graph import ProvenanceGraph
from shardline.provenance.nodes import ActionNode
from shardline.records.jobs import JobRecord

_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
_BIOSCHEMAS = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"


def describe(contents: Contents, report_action: JobRecord | None) -> dict[str, Any]:
    """Return the metadata of a crate; the same files give the same document.

    Args:
        report_action: Record of the job that rendered the report.
    """
    jobs = _recorded_jobs(contents, report_action)
    newest = max((job.recorded for job in jobs), key=lambda record: record.ended, default=None)
    engine = newest.software.get("snakemake", "unknown") if newest else "unknown"
    entities = Entities()
    _describe_files(entities, contents)
    for name, path in (pair for job in jobs for pair in job.accepted_as.items()):
        entities.alias(name, path)
    workflow = _describe_workflow(entities, contents, engine)
    _describe_root(entities, contents, jobs)
    actions = [(job, describe_job(entities, workflow, contents, job)) for job in jobs]
    if actions:
        _describe_run(entities, workflow, actions, contents, engine)
    return seal_crate(entities.document())


def _recorded_jobs(contents: Contents, report_action: JobRecord | None) -> list[ActionNode]:
    """Return the jobs behind the report that have a record, in the order of the pipeline."""
    # in a crate, shards have this path for any store of the project
    graph = ProvenanceGraph(contents.records, names=ResultsLayout(root=Path()))
    runs = [(run.id, run.evaluation_id) for run in contents.project.runs.values()]
    known = [dataset for dataset in contents.provenances if dataset in contents.manifests]
    studies = contents.project.finished_studies
    jobs = graph.jobs_behind(runs, known, studies)
    if report_action:
        report = contents.project.report.parent.name
        jobs.append(graph.report_of(report, runs, contents.manifests, report_action, studies))
    return [job for job in jobs if job.record]


def _describe_files(entities: Entities, contents: Contents) -> None:
    for path, item in contents.items.items():
        if path not in (f"{WORKFLOW}/Snakefile", "README.md"):
            entities.file(path, item)
    entities.file("README.md", contents.items["README.md"], about=entities.root)
    for dataset, manifest in contents.manifests.items():
        folder = shards_folder(dataset)
        where = (
            "" if contents.with_data else f" Not in this crate; in the store it is {folder[6:]}."
        )
        entities.folder(
            folder,
            is_here=contents.with_data,
            name=f"Shards of {dataset}",
            description=f"{len(manifest.shards)} shards, {manifest.bytes} bytes. The manifest lists rows, bytes "
            f"and BLAKE3 digest of each shard.{where}",
            subjectOf=entities.get(str(contents.paths.manifest(dataset))),
        )


def _describe_workflow(entities: Entities, contents: Contents, engine: str) -> Entity:
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
        "license": spdx(entities, "MIT"),
        "softwareRequirements": entities.get(f"{WORKFLOW}/{contents.project.lock_file.name}"),
    }
    return entities.workflow(path, engine, **properties)


def _describe_root(entities: Entities, contents: Contents, jobs: Sequence[ActionNode]) -> None:
    cited = read_citation(contents)
    profiles = [
        entities.entity(url, "CreativeWork", name=name, version=url.rpartition("/")[2])
        for url, name in _PROFILES.items()
    ]
    runs = len(contents.runs)
    root = entities.root
    root["conformsTo"] = profiles
    root["name"] = cited.get("title") or f"Shardline report {contents.project.report.parent.name}"
    root["description"] = cited.get("abstract") or (
        f"{runs} trained and evaluated runs over {len(contents.manifests)} datasets, the report that compares "
        "them, and every job that made them."
    )
    # the end of the newest job, so that the same files give the same date
    root["datePublished"] = max((time_of(job.recorded.ended) for job in jobs), default="1970-01-01")
    root["license"] = license_of(entities, cited)
    authors = authors_of(entities, cited) or [entities.person(job.recorded.agent) for job in jobs]
    if made_by := refer(authors):
        root["author"] = made_by
    if publisher := publisher_of(authors):
        root["publisher"] = publisher


def _describe_run(
    entities: Entities,
    workflow: Entity,
    actions: Sequence[tuple[ActionNode, Entity]],
    contents: Contents,
    engine: str,
) -> None:
    """Add the run of the whole workflow, and Snakemake as its engine."""
    jobs = [job for job, _ in actions]
    started = min(time_of(job.recorded.started) for job in jobs)
    ended = max(time_of(job.recorded.ended) for job in jobs)
    agents = refer(entities.person(job.recorded.agent) for job in jobs)
    asked = [*(entities.get(path) for path in (str(CONFIG), contents.project.table))]
    report = [
        entities.get(path)
        for path in contents.items
        if path.startswith(f"{contents.report_folder}/")
    ]
    settings = {value.id: value for job in jobs for value in settings_of(entities, job)}
    for given, direction in ((asked, "input"), (report, "output")):
        for file in filter(None, given):
            entities.exemplify(file, entities.parameter(workflow, direction, file["name"], "File"))
    run = entities.local(
        "run", contents.project.report.parent.name, "CreateAction",
        name="The run of the workflow", description="All jobs behind this report, whenever they ran.",
        startTime=started, endTime=ended, agent=agents, instrument=workflow,
        actionStatus="http://schema.org/CompletedActionStatus",
        object=refer([*filter(None, asked), *settings.values()]), result=refer(filter(None, report)),
    )  # fmt: skip
    entities.link(entities.root, "mentions", run)
    entities.local(
        "organize", contents.project.report.parent.name, "OrganizeAction",
        name=f"Snakemake {engine}", instrument=_snakemake(entities, engine), agent=agents,
        startTime=started, endTime=ended, object=refer(control for _, control in actions), result=run,
    )  # fmt: skip


def _snakemake(entities: Entities, version: str) -> Entity:
    """Return the program that ran the jobs."""
    url = f"https://snakemake.readthedocs.io/en/v{version}/"
    return entities.entity(
        url, "SoftwareApplication", name="Snakemake", softwareVersion=version, url=url
    )
