"""The job that writes the report over all runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from shardline.config.job_plan import recheck_report
from shardline.config.plans import RunPlan
from shardline.config.project import Project
from shardline.pipeline import invocation
from shardline.pipeline.job_frame import check_environment
from shardline.pipeline.stored_trials import bring_home, declared_path
from shardline.provenance.actions import Action
from shardline.records.acceptances import ACCEPTED
from shardline.results.sweeps.trials import study_so_far

if TYPE_CHECKING:
    from shardline.report import TableEntry
from shardline.results.sweeps.combined_trials import titles_of_trials


def report(project: Project, page: str, crate: str, inputs: Mapping[str, Sequence[str]]) -> None:
    """Write the report over all runs of the run table: page, data, table and crate, side by side.

    Args:
        page: path of the page; data and table are written beside it.
        crate: path of the provenance, an RO-Crate.
        inputs: `runs`, `identities`, `metrics`, `evaluations` and `provenances`, in the same order,
            the existing `manifests`, and `datasets` (their provenances).
    """
    recheck_report(project, Path(page).parent.name)
    write(project, Path(page), Path(crate), inputs)


def write(project: Project, page: Path, crate: Path, inputs: Mapping[str, Sequence[str]]) -> None:
    """Write the report over a project's runs.

    Args:
        page: see `report`, as for `crate` and `inputs`.
    """
    from shardline.provenance.crate.contents import records_of
    from shardline.provenance.crate.pack import write_metadata
    from shardline.provenance.graph import ProvenanceGraph
    from shardline.provenance.nodes import picture
    from shardline.report import RunFiles, write_report
    from shardline.report.document import read_history

    action = Action(id=f"render_report/{page.parent.name}")
    check_environment(project, project.report_document)
    bring_home(project.layout.declared, inputs.get("studies", ()))
    kinds = ("runs", "identities", "metrics", "evaluations", "provenances")
    each = zip(*(map(Path, inputs[kind]) for kind in kinds), strict=True)
    evaluated = {run.evaluation_id: run for run in project.runs.values()}
    files = [
        RunFiles(
            run=run,
            identity=identity,
            metrics=metrics,
            evaluation=evaluation,
            provenance=provenance,
            accepted=accepted if (accepted := run.with_name(ACCEPTED)).exists() else None,
            asked=_asked(project, evaluated[evaluation.stem]),
        )
        for run, identity, metrics, evaluation, provenance in each
    ]
    places = {
        str(declared_path(project.layout, Path(path))): Path(path)
        for paths in inputs.values()
        for path in paths
    }
    records = records_of(project, places | {project.layout.name_of(project.report): page})
    jobs = ProvenanceGraph(records).jobs_behind(
        [(run.id, run.evaluation_id) for run in project.runs.values()], project.datasets,
        project.finished_studies,
    )  # fmt: skip
    record = action.record()
    write_report(
        files,
        page,
        generated_from=project.table,
        studies=project.scaling,
        sweeps=[study_so_far(plan, project.layout.declared) for plan in project.sweeps.values()],
        manifests=[Path(path) for path in inputs["manifests"]],
        workflow=picture(jobs, invocation.recorded()),
        action=record,
        outcomes=project.outcomes,
        project=_title(project),
        history=read_history(Path(page).parent),
    )
    write_metadata(project, crate, records=records, report_action=record)


def _title(project: Project) -> str:
    """Return the title in the project's CITATION.cff, or else the name of its folder."""
    try:
        cited = yaml.safe_load((project.workdir / "CITATION.cff").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        cited = None
    title = cited.get("title") if isinstance(cited, dict) else None
    return str(title or project.workdir.name)


def _names_of_bases(project: Project, run: RunPlan) -> dict[str, str]:
    """Return the names of what a run begins from or combines, by id of a run or identity of a study."""
    runs = {one.run: project.runs[one.run].name for one in run.bases if one.run in project.runs}
    studies = {one.identity: one.name for one in run.bases if one.source == "sweep"}
    return {**titles_of_trials(run), **runs, **studies}


def _asked(project: Project, run: RunPlan) -> "TableEntry":
    from shardline.report import TableEntry

    notes = [project.notes[name] for name in run.names if name in project.notes]
    return TableEntry(
        key=next(key for key, known in project.runs.items() if known is run),
        names=run.names,
        dataset_names=run.dataset.names if len(run.parts) == 1 else (run.dataset_name,),
        datasets={part.dataset.id: part.dataset.name for part in run.parts},
        bases=_names_of_bases(project, run),
        varied=run.varied,
        in_table=run.in_table,
        notes={note.name: note.text for note in notes},
        tags=tuple(dict.fromkeys(tag for note in notes for tag in note.tags)),
        num_folds=run.num_folds,
    )
