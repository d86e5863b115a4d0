"""Read one run for the report from its sealed files."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeVar

from msgspec import UNSET, structs

from shardline.config.settings.run_settings import default_settings
from shardline.core.canonical import digest
from shardline.core.errors import DataError
from shardline.core.files import read_object
from shardline.core.intervals import but_seed
from shardline.core.metric_names import find_metric, measure_of
from shardline.core.nested import flatten
from shardline.core.redaction import mask_values
from shardline.records.acceptances import Accepted
from shardline.records.attempts import Attempt
from shardline.records.base import Record, encode
from shardline.records.evaluations import EvaluationResult
from shardline.records.jobs import JobRecord
from shardline.records.model_warnings import read_warnings
from shardline.records.reported_parts import (
    Curve,
    ReportedAcceptance,
    ReportedAttempt,
    ReportedBase,
    ReportedCalibration,
    ReportedDataset,
    ReportedHeadline,
    ReportedTraining,
    ReportedValidation,
    ReportedWarning,
)
from shardline.records.reported_runs import ReportedRun, interval_of_accuracy
from shardline.records.runs import ResolvedRun
from shardline.records.trainings import TrainingProvenance
from shardline.report.charts.curves import MAX_POINTS_PER_CURVE
from shardline.report.charts.series import epoch_ends, thin
from shardline.report.confusion_table import view_confusion
from shardline.report.logged import bound_met_at, describe_logged
from shardline.report.sealed import REMEDY, RunFiles, TableEntry, read, read_metrics, sha256_of
from shardline.report.trained_in import describe_environment

_Measured = TypeVar("_Measured", bound=Record)
_UNUSED = ("optim.", "schedule.")  # beside a model's own `configure_optimizers`
_RECORDED = ("id", "started", "ended", "host", "agent", "image", "num_cpus", "memory_bytes")


def read_run(files: RunFiles) -> tuple[ReportedRun, dict[str, str]]:
    """Return a run, and the installed packages of its training.

    Raises:
        DataError: A file is missing, malformed or from another run. The message names file and remedy.
    """
    spec = read(files.run, ResolvedRun)
    identity = mask_values(read_object(files.identity, remedy=REMEDY))
    evaluation, provenance = (
        read(files.evaluation, EvaluationResult),
        read(files.provenance, TrainingProvenance),
    )
    for path, of in ((files.evaluation, evaluation.run), (files.provenance, provenance.run)):
        is_own = path == files.evaluation or not files.accepted
        if is_own and of not in ("", spec.run):
            raise DataError(
                f"{path} is of run {of!r}, but {files.run} is of run {spec.run!r}; expected files of one run; run "
                "`snakemake` again"
            )
    accepted = read(files.accepted, Accepted) if files.accepted else None
    (curves, logged), asked = read_metrics(files.metrics), files.asked
    settings = flatten(spec.settings, by_name=True)
    if provenance.training.own_optimizer:
        settings = {key: of for key, of in settings.items() if not key.startswith(_UNUSED)}
    made = _actions(spec, provenance, evaluation, files.evaluation.stem, accepted)
    trained, evaluated = made["train"]["id"], made["evaluate"]["id"]
    headline = _headline(evaluation, evaluated)
    training = _training(provenance, spec, curves, trained)
    sealed_step = _sealed_step(curves, settings.get("checkpoint.monitor"), provenance)
    warnings = read_warnings(files.metrics, encode(provenance), encode(evaluation))
    run = ReportedRun(
        id=asked.key,
        training_id=spec.run,
        name=", ".join(asked.names),
        names=list(asked.names),
        notes=dict(asked.notes),
        tags=list(asked.tags),
        identity=spec.identity,
        dataset=", ".join(spec.mix),
        trained_on=_datasets(spec, provenance, asked),
        dataset_names=list(asked.dataset_names),
        bases=[
            ReportedBase(**structs.asdict(one), name=asked.bases.get(one.run or one.identity, ""))
            for one in provenance.bases or spec.bases or []
        ]
        or UNSET,
        model=spec.model or None,
        accepted=_accepted(accepted) if accepted else None,
        settings=settings,
        changed=changed_settings(settings),
        varied=sorted(asked.varied),
        varied_values=dict(asked.varied),
        in_table=asked.in_table,
        all_but_seed=digest(but_seed(identity, evaluation.identity, ("seed", "fold"))),
        num_folds=asked.num_folds or UNSET,
        versions=identity.get("versions", {}),
        definitions=identity.get("code", {}),
        warnings=[
            ReportedWarning(
                kind=one.kind,
                sentence=one.sentence,
                action=evaluated if one.kind == "constant" else trained,
            )
            for one in warnings
        ],
        headline=headline,
        metrics={**evaluation.metrics, "action": evaluated},
        held_out_task=evaluation.task,
        known_value=evaluation.reference or None,
        calibration=_calibration(evaluation, evaluated),
        reliability=evaluation.calibration or None,
        residuals=evaluation.residuals or None,
        confusion=view_confusion(evaluation.confusion) if evaluation.confusion else None,
        samples=evaluation.samples or None,
        best_validation=_best_validation(headline, curves, sealed_step, trained),
        training=training,
        throughput=_by(provenance.throughput, trained),
        goodput=_by(provenance.goodput, trained),
        resources=_by(provenance.resources, trained),
        packs=_by(provenance.packs or None, trained) or UNSET,
        curves={name: thin(curve, MAX_POINTS_PER_CURVE) for name, curve in curves.items()},
        epoch_ends=epoch_ends(curves),
        logged=describe_logged(logged, trained) or UNSET,
        logged_until=bound_met_at(logged),
        code=provenance.git,
        environment=describe_environment(spec, provenance),
        software=provenance.software,
        tracking=provenance.tracking,
        manifest_sha256=provenance.manifest_sha256 or None,
        files={**provenance.files, **_digests(files)},
        made=made,
    )
    return run, provenance.environment.packages or {}


def _actions(
    spec: ResolvedRun, provenance: TrainingProvenance, evaluation: EvaluationResult, evaluation_id: str,
    accepted: Accepted | None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Return actions by rule: id, and recorded time and place."""
    trained = (provenance.run if accepted else "") or spec.run
    recorded = {
        "resolve_run": (f"{'accept' if accepted else 'resolve_run'}/{spec.run}", spec.action),
        "train": (f"train/{trained}", provenance.action),
        "evaluate": (f"evaluate/{spec.run}/{evaluation_id}", evaluation.action),
    }
    return {
        rule: summary_of(record) if record else {"id": action}
        for rule, (action, record) in recorded.items()
    }


def summary_of(record: JobRecord) -> dict[str, Any]:
    """Return the known fields of a job record that the report shows."""
    known = {key: getattr(record, key) for key in _RECORDED}
    return {key: value for key, value in known.items() if value is not None}


def _headline(evaluation: EvaluationResult, action: str) -> ReportedHeadline:
    headline = evaluation.headline
    found = ReportedHeadline(
        metric=headline.metric,
        mode="min" if headline.mode == "min" else "max",
        split=evaluation.split,
        value=headline.value,
        num_samples=evaluation.num_samples,
        measured_by="script" if evaluation.measured_by == "script" else "evaluate",
        is_logged_by_model=evaluation.measured_by == "model",
        action=action,
    )
    if headline.interval:
        low, high = headline.interval
        method = headline.interval_method or "wilson"
        return structs.replace(found, interval=(low, high), interval_method=method)
    interval = None if headline.value is None else interval_of_accuracy(found, headline.value)
    return structs.replace(found, interval=interval, interval_method="wilson" if interval else None)


def _training(
    provenance: TrainingProvenance, spec: ResolvedRun, curves: Mapping[str, Curve], action: str
) -> ReportedTraining:
    trained, world = provenance.training, provenance.world
    last = max((curve.steps[-1] for curve in curves.values() if curve.steps), default=None)
    names = [rank.device_name for rank in world.ranks or []]
    seed = spec.settings.get("seed") if provenance.seed is UNSET else provenance.seed
    return ReportedTraining(
        steps=trained.steps if isinstance(trained.steps, int) else last,
        epochs=trained.epochs or None,
        duration_s=provenance.duration_s,
        attempts=provenance.attempts,
        attempt_log=list(map(_attempt, provenance.attempt_log or [])) or None,
        started=provenance.started,
        ended=provenance.ended,
        world_size=world.world_size,
        nodes=world.nodes,
        launcher=world.launcher,
        devices=provenance.devices,
        device_names=list(dict.fromkeys(filter(None, names))),
        stopped_early=bool(trained.stopped_early),
        interventions=trained.interventions or [],
        seed=seed,
        host=provenance.host,
        certificate=provenance.certificate,
        init=trained.init,
        combined=trained.combined,
        continued=provenance.continued,
        action=action,
    )


def _attempt(attempt: Attempt) -> ReportedAttempt:
    """Return an attempt at a sealed training; a later attempt followed each one that did not seal it."""
    known = structs.asdict(attempt) | {"reason": attempt.cause}
    return ReportedAttempt(**known, duration_s=attempt.duration_s)


def _sealed_step(
    curves: Mapping[str, Curve], monitor: object, provenance: TrainingProvenance
) -> int | None:
    """Return the step of the sealed weights by their monitored score; None if unknown."""
    curve, sealed = curves.get(str(monitor)), provenance.training.best_score
    if not isinstance(sealed, int | float) or not (curve and curve.values):
        return None
    points = zip(curve.values, curve.steps, strict=True)
    return min(points, key=lambda at: abs(at[0] - sealed))[1]


def _best_validation(
    headline: ReportedHeadline, curves: Mapping[str, Curve], step: int | None, action: str
) -> ReportedValidation | None:
    """Return the validation result of the sealed weights by the headline metric, or by the loss.

    If the step is unknown, as for a training script, return the best value and its first step.
    """
    own = measure_of(headline.metric)
    for measure, best_of in ((own, max if headline.mode == "max" else min), ("loss", min)):
        metric = find_metric(curves, measure, "val") or ""
        curve = curves.get(metric)
        if curve and curve.values:
            value = best_of(curve.values) if step is None else curve.at(step)
            at = curve.steps[curve.values.index(value)] if step is None else step
            return ReportedValidation(metric=metric, value=value, step=at, action=action)
    return None


def _calibration(evaluation: EvaluationResult, action: str) -> ReportedCalibration | None:
    found = evaluation.calibration
    return (
        ReportedCalibration(ece=found.ece, action=action)
        if found and found.ece is not None
        else None
    )


def _by(measured: _Measured | None, action: str) -> _Measured | None:
    """Return a measured record with the id of its action."""
    return structs.replace(measured, action=action) if measured else None


def _datasets(
    spec: ResolvedRun, provenance: TrainingProvenance, asked: TableEntry
) -> list[ReportedDataset]:
    """Return the datasets of a run, with the checksums of the manifests that the training read."""
    read = {part.id: part.manifest_sha256 for part in provenance.datasets or []}
    if not read and provenance.manifest_sha256:
        read = dict.fromkeys(spec.mix, provenance.manifest_sha256)
    return [
        ReportedDataset(
            id=key,
            name=asked.datasets.get(key, ", ".join(asked.dataset_names)),
            weight=f"{float(Fraction(weight)):g}",
            manifest_sha256=read.get(key) or None,
        )
        for key, weight in spec.mix.items()
    ]


def _accepted(accepted: Accepted) -> ReportedAcceptance:
    action = accepted.action
    return ReportedAcceptance(
        from_=accepted.from_.id,
        by=action.agent,
        at=action.ended,
        reason=accepted.full_reason,
        differs=[cause.text for cause in accepted.differs],
        action=action.id,
    )


def _digests(files: RunFiles) -> dict[str, str]:
    beside = [files.run, files.identity, files.metrics, files.provenance]
    beside += [files.accepted] if files.accepted else []
    found = {path.name: sha256_of(path) for path in beside}
    return found | {f"evaluations/{files.evaluation.name}": sha256_of(files.evaluation)}


_ABSENT = object()
# `auto` resolves to the machine's accelerator, which is not a choice of the user
_RESOLVED = frozenset({"accelerator"})


def changed_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return the keys whose value differs from the default, in the order of the settings.

    Args:
        settings: Settings by dotted key. Keys without a default, such as model arguments, count as changed.
    """
    known = default_settings()
    return [
        key
        for key, value in settings.items()
        if known.get(key, _ABSENT) != value and key not in _RESOLVED and not _is_empty(value, key)
    ]


def _is_empty(value: Any, key: str) -> bool:
    """Return whether a key without a default has an empty value."""
    return key not in default_settings() and value in (None, {}, [], "")
