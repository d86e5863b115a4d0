"""The jobs behind a report, from the records that they left: what each read, wrote and was set to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from shardline.config.plans import order_of_part
from shardline.core.nested import flatten
from shardline.provenance.crate.contents import CONFIG, Contents, shards_folder
from shardline.records.runs import TrainingProvenance

# In the order of the pipeline: rule, and what it is for.
RULES = {
    "build_shards": "Write a part of a dataset's shards",
    "seal_dataset": "Merge a dataset's parts into its manifest",
    "resolve_run": "Write a run's resolved settings and its identity",
    "train": "Train a run, from its settings to sealed weights",
    "evaluate": "Evaluate a sealed model on held-out data",
    "render_report": "Compare all runs on one page",
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One executed job.

    Attributes:
        action: its record (`shardline.provenance.actions`).
        inputs, outputs: paths in the crate by parameter; that of a dataset's shards ends in `/`.
        settings: what the job was set to, by dotted key.
        devices: models of the GPUs or processors that its ranks computed on.
        peak_bytes: most memory of a rank, where it was measured.
    """

    action: Mapping[str, Any]
    inputs: Mapping[str, list[str]]
    outputs: Mapping[str, list[str]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    peak_bytes: int | None = None

    @property
    def rule(self) -> str:
        """The rule that it ran."""
        return str(self.action["rule"])


def find_steps(contents: Contents, report_action: Mapping[str, Any] | None) -> list[Step]:
    """Return the jobs that left a record, in the order of the pipeline.

    Args:
        report_action: the record of the report's own job, which wrote it nowhere yet.
    """
    steps = [*_dataset_steps(contents), *_run_steps(contents)]
    if report_action:
        steps.append(_report_step(contents, report_action))
    order = list(RULES)
    # two evaluations of one training share its steps
    once = {step.action["id"]: step for step in reversed(steps)}
    known = [step for step in once.values() if step.rule in order]
    return sorted(known, key=lambda step: (order.index(step.rule), *_order_of(step.action["id"])))


def _order_of(action: str) -> tuple[object, ...]:
    job, _, part = action.rpartition("/")
    return job, *order_of_part(part)


def _dataset_steps(contents: Contents) -> Iterator[Step]:
    for dataset, provenance in contents.provenances.items():
        if dataset not in contents.manifests:
            continue
        identity = contents.manifests[dataset].identity
        folder = str(contents.paths.result("dataset", dataset))
        shards = {"shards": [shards_folder(dataset)]}
        source: dict[str, list[str]] = {f"source/{dataset}": []}
        settings = flatten(identity.get("settings", {}))
        for part in provenance.parts:
            yield Step(action=part, inputs=source, outputs=shards, settings=settings)
        written = [f"{folder}/manifest.json", f"{folder}/provenance.json"]
        outputs = {"manifest": written[:1], "provenance": written[1:]}
        yield Step(action=provenance.action, inputs=shards, outputs=outputs)


def _run_steps(contents: Contents) -> Iterator[Step]:
    asked, paths = {"config": [str(CONFIG)], "runs": [contents.project.table]}, contents.paths
    for run in contents.project.runs.values():
        found = contents.runs[run.evaluation_id]
        spec, provenance, evaluation = found.spec, found.provenance, found.evaluation
        folder = str(paths.run(run.id))
        read = {
            "spec": [f"{folder}/run.json"],
            "manifest": [str(paths.manifest(part.dataset.id)) for part in run.parts],
            "shards": [shards_folder(part.dataset.id) for part in run.parts],
        }
        model = {"model": [f"{folder}/model.safetensors"]}
        trained = {
            **model,
            "metrics": [f"{folder}/metrics.jsonl"],
            "provenance": [f"{folder}/provenance.json"],
        }
        settings = {"model": spec.model_class, **flatten(spec.settings)}
        evaluated = {key: value for key, value in settings.items() if key.startswith("evaluation.")}
        if spec.action:
            outputs = {"spec": read["spec"], "identity": [f"{folder}/identity.json"]}
            yield Step(action=spec.action, inputs=asked, outputs=outputs)
        if provenance.action:
            yield Step(
                action=provenance.action,
                inputs=read,
                outputs=trained,
                settings={key: settings[key] for key in settings if key not in evaluated},
                devices=tuple(_devices(provenance)),
                peak_bytes=_peak(provenance),
            )
        if evaluation.action:
            yield Step(
                action=evaluation.action,
                inputs={**read, **model},
                outputs={"evaluation": [str(paths.evaluation(run.id, run.evaluation_id))]},
                settings=evaluated,
            )


def _report_step(contents: Contents, action: Mapping[str, Any]) -> Step:
    paths, runs = contents.paths, contents.project.runs.values()
    folders = [str(paths.run(run.id)) for run in runs]
    report = f"{contents.report_folder}/"
    written = [path for path in contents.items if path.startswith(report)]
    inputs = {
        "runs": [f"{folder}/run.json" for folder in folders],
        "metrics": [f"{folder}/metrics.jsonl" for folder in folders],
        "provenances": [f"{folder}/provenance.json" for folder in folders],
        "evaluations": [str(paths.evaluation(run.id, run.evaluation_id)) for run in runs],
        "identities": [f"{folder}/identity.json" for folder in folders],
        "manifests": [str(paths.manifest(name)) for name in contents.manifests],
        "datasets": [
            str(paths.manifest(name).with_name("provenance.json")) for name in contents.provenances
        ],
    }
    return Step(action=action, inputs=inputs, outputs={"report": written})


def _devices(provenance: TrainingProvenance) -> Iterator[str]:
    for rank in provenance.world.ranks or []:
        yield rank.device_name or rank.device


def _peak(provenance: TrainingProvenance) -> int | None:
    ranks = provenance.resources.ranks if provenance.resources else []
    return max((rank.peak_rss_bytes for rank in ranks), default=None)
