"""Accepting an earlier result: link its files under the present identity, and record it."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import UNSET, structs

from shardline.config.plans import DatasetPlan, RunPlan
from shardline.config.project import Project
from shardline.config.scripts import is_script
from shardline.core.canonical import digest
from shardline.core.digests import file_sha256
from shardline.core.errors import ConfigError, DataError, ShardlineError
from shardline.core.files import json_bytes, make_folder, write_bytes, write_json
from shardline.core.one_lightning import keep
from shardline.core.package import check_unlocked
from shardline.provenance.actions import Action
from shardline.provenance.resolved_run import describe_run
from shardline.records.acceptances import (
    ACCEPTED,
    Accepted,
    Difference,
    FirstSteps,
    Origin,
    accepted_of,
)
from shardline.records.base import encode, read_record, sealed
from shardline.records.datasets import DatasetProvenance
from shardline.records.evaluations import EvaluationRef, EvaluationResult, TakenOver
from shardline.records.identities import weights_of_inputs
from shardline.records.runs import ResolvedRun
from shardline.results.accept.candidates import (
    Candidate,
    find_by_cause,
    has_bases_of,
    is_near,
    read_manifest,
)
from shardline.results.accept.replaced_folders import forget_incomplete, held, link, replacing
from shardline.results.findings import VerifyResult
from shardline.results.sealed_run import REMAKE
from shardline.results.staleness import read_definitions
from shardline.results.verify import verify_dataset
from shardline.results.verify_runs import verify_run

_LOG = logging.getLogger("shardline")
_TRAINED = ("model.safetensors", "metrics.jsonl", "provenance.json")
_DECLARED = (*_TRAINED, "run.json", "identity.json")


def accept_run(
    project: Project, candidate: Candidate, *, reason: str, with_evaluation: bool,
    checks_model: bool = True, first_steps: Mapping[str, int] | None = None,
) -> Path:  # fmt: skip
    """Accept an earlier training for the present identity of a run.

    Args:
        candidate: Run and earlier training.
        reason: Reason that the user gave.
        with_evaluation: Accept the earlier evaluation too; else the model is evaluated again.
        checks_model: Create the present model, to compare its tensors with those of the earlier one.
        first_steps: Result of `compare_first_steps`.

    Returns:
        Folder of the run's results, which exists completely or not at all.

    Raises:
        ConfigError: The model or the dataset's schema differs, or the dataset is not sealed.
        DataError: A file of the earlier result is damaged, or a file cannot be written.
        ShardlineError: Snakemake or a training of this run is running.
    """
    run, action = candidate.asked, Action(id=f"accept/{candidate.asked.id}")
    assert isinstance(run, RunPlan)
    earlier = project.layout.run(candidate.earlier)
    refuse_damage(verify_run(project.layout, candidate.earlier))
    check_schema(run, earlier)
    if checks_model:
        check_model(run, earlier)
    spec = describe_run(project, run, action)
    with held(project.layout.work(run.id), candidate.title), replacing(run.folder) as scratch:
        write_bytes(scratch / "identity.json", json_bytes(run.document))
        write_json(scratch / "run.json", sealed(spec))
        for name in _TRAINED:
            link(earlier / name, scratch / name)
        if with_evaluation:
            _take_evaluation(candidate, run, earlier, scratch, action)
        _keep_evaluations(run.folder, scratch)
        record = _record(candidate, reason, scratch, earlier, action)
        if first_steps:
            record = structs.replace(record, first_steps=FirstSteps(**first_steps))
        write_json(scratch / ACCEPTED, sealed(record))
    forget_incomplete(project.workdir, [run.folder / name for name in _DECLARED])
    return run.folder


def accept_dataset(project: Project, candidate: Candidate, *, reason: str) -> Path:
    """Accept an earlier dataset, with shards and manifest, for the present identity of a dataset.

    Returns:
        Folder of the dataset's results.

    Raises:
        DataError: A shard or the manifest is damaged, or a file cannot be written.
    """
    dataset, action = candidate.asked, Action(id=f"accept/{candidate.asked.id}")
    assert isinstance(dataset, DatasetPlan)
    refuse_damage(verify_dataset(project, candidate.earlier))
    layout = project.layout
    earlier = layout.result("dataset", candidate.earlier)
    manifest = read_manifest(layout, candidate.earlier)
    make_folder(layout.shards(dataset.id))
    files = [shard.file for shard in manifest.shards]  # before the manifest, which lists them
    if manifest.statistics.file:
        files.append(manifest.statistics.file)
    for file in files:
        link(layout.shards(candidate.earlier) / file, layout.shards(dataset.id) / file)
    manifest = structs.replace(manifest, dataset=dataset.id, identity=dataset.document)
    recorded = _provenance(earlier)
    with replacing(dataset.manifest.parent) as scratch:
        write_json(scratch / "manifest.json", encode(manifest))
        provenance = DatasetProvenance(
            dataset=dataset.id,
            identity=digest(dataset.document),
            definitions=dataset.definitions,
            inferred=recorded.inferred if recorded else {},
            example=recorded.example if recorded else UNSET,
            action=action.record(),
            parts=[],
            files={"manifest.json": file_sha256(scratch / "manifest.json")},
        )
        write_json(scratch / "provenance.json", sealed(provenance))
        record = _record(candidate, reason, scratch, earlier, action)
        origin = structs.replace(
            record.from_, manifest_sha256=file_sha256(earlier / "manifest.json")
        )
        write_json(scratch / ACCEPTED, sealed(structs.replace(record, from_=origin)))
    forget_incomplete(project.workdir, [dataset.manifest, dataset.provenance])
    return dataset.manifest.parent


def _provenance(earlier: Path) -> DatasetProvenance | None:
    """Return the provenance of a dataset, which contains what was understood of its source."""
    path = earlier / "provenance.json"
    return read_record(path, DatasetProvenance, remedy=REMAKE) if path.exists() else None


def _record(
    candidate: Candidate, reason: str, scratch: Path, earlier: Path, action: Action
) -> Accepted:
    """Return the record of an acceptance; it contains an earlier acceptance, if any."""
    before = accepted_of(earlier)
    definitions = _differing(read_definitions(earlier), candidate.asked.definitions)
    files = [scratch / name for name in _TRAINED if (scratch / name).exists()]
    origin = Origin(
        id=candidate.earlier,
        identity=digest(candidate.document),
        document=dict(candidate.document),
        accepted=before or UNSET,
    )
    return Accepted(
        id=candidate.asked.id,
        identity=digest(candidate.asked.document),
        from_=origin,
        reason=reason,
        differs=[Difference(kind=cause.kind, text=cause.text) for cause in candidate.causes],
        definitions=definitions or UNSET,
        files={path.name: file_sha256(path) for path in files},
        action=action.record(),
    )


def _differing(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> dict[str, tuple[str | None, str | None]]:
    """Return the changed definitions of the user's code, each with the digest before and now."""
    before, after = (
        {name: of for part in known.values() for name, of in part.get("definitions", {}).items()}
        for known in (old, new)
    )
    names = sorted(before.keys() | after.keys()) if before and after else []
    pairs = {name: (before.get(name), after.get(name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def fitting_evaluation(run: RunPlan, earlier: Path) -> Path | None:
    """Return the newest earlier evaluation with the run's settings, or None."""
    asked = run.evaluation_document["settings"]
    files = (earlier / "evaluations").glob("*.json")
    for path in sorted(files, key=lambda path: path.stat().st_mtime, reverse=True):
        if read_record(path, EvaluationResult, remedy=REMAKE).identity["settings"] == asked:
            return path
    return None


def _take_evaluation(
    candidate: Candidate, run: RunPlan, earlier: Path, scratch: Path, action: Action
) -> None:
    """Accept the earlier evaluation with the same settings.

    Raises:
        ConfigError: No such evaluation exists.
    """
    path = fitting_evaluation(run, earlier)
    if path is None:
        raise ConfigError(
            f"{earlier} has no evaluation with the present settings; evaluate the model again: --evaluations again"
        )
    evaluation = read_record(path, EvaluationResult, remedy=REMAKE)
    taken = structs.replace(
        evaluation,
        run=run.id,
        identity=run.evaluation_document,
        accepted=TakenOver(from_=EvaluationRef(run=candidate.earlier, evaluation=path.stem)),
        action=evaluation.action or action.record(),
    )
    write_json(scratch / "evaluations" / run.evaluation.name, sealed(taken))


def _keep_evaluations(folder: Path, scratch: Path) -> None:
    for path in (folder / "evaluations").glob("*.json"):
        if not (scratch / "evaluations" / path.name).exists():
            link(path, scratch / "evaluations" / path.name)


def refuse_damage(verdict: VerifyResult) -> None:
    """Reject a result with problems.

    Raises:
        DataError: The message lists all problems.
    """
    if verdict.problems:
        raise DataError("\n".join(verdict.problems))


def check_schema(run: RunPlan, earlier: Path) -> None:
    """Reject a run whose dataset has another schema than that of the earlier training."""
    before = read_record(earlier / "run.json", ResolvedRun, remedy=REMAKE).mix
    if before.keys() == {part.dataset.id for part in run.parts}:
        return
    trained_on = next(iter(before))  # the datasets of a mix have one schema
    if not run.dataset.manifest.exists():
        raise ConfigError(
            f"{run.name} ({run.id}): its dataset {run.dataset.name} ({run.dataset.id}) is not sealed, so its schema is "
            f"not known; accept dataset:{run.dataset.names[0]} first, or build {run.dataset.manifest}"
        )
    if not run.layout.exists("dataset", trained_on):
        raise ConfigError(
            f"{run.name} ({run.id}): the dataset {trained_on} of {earlier} no longer exists, so its schema is not "
            "known; train the run again"
        )
    old, new = (encode(read_manifest(run.layout, i).schema) for i in (trained_on, run.dataset.id))
    if old != new:
        differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        raise ConfigError(
            f"{run.name} ({run.id}): the schema of {run.dataset.name} has another {', '.join(differing)} than that of "
            f"{earlier}, so its model cannot be accepted; train the run again"
        )


def check_model(run: RunPlan, earlier: Path) -> None:
    """Reject a model with other tensors than the present model."""
    if is_script(run.model_class):  # only the script knows its model
        return
    from safetensors import safe_open

    keep(run.lightning)
    from shardline.training.model import make_model

    model = make_model(run.spec, read_manifest(run.layout, run.dataset.id).schema)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    with safe_open(earlier / "model.safetensors", framework="pt") as sealed:
        names = sealed.keys()
        shapes = {name: tuple(sealed.get_slice(name).get_shape()) for name in names}
    if shapes != expected:
        names = sorted(
            name for name in {**shapes, **expected} if shapes.get(name) != expected.get(name)
        )
        differences = ", ".join(
            f"{name} {shapes.get(name, 'missing')} -> {expected.get(name, 'missing')}"
            for name in names[:3]
        )
        raise ConfigError(
            f"{run.name} ({run.id}): the model has other tensors than that of {earlier} ({differences}), so it "
            "cannot be accepted; train the run again"
        )


def accept_unasked(project: Project) -> None:
    """Accept results that differ only in the environment, as far as `identity.environment` allows.

    Logs the accepted results, and the reason for each result that must be computed again.
    """
    level = project.identity.environment
    if level == "exact":
        return
    # in order: a run can be accepted only after its dataset and its bases
    for found in find_by_cause(project, {"environment"}):
        if not _fits(found, level):
            continue
        try:
            check_unlocked(project.workdir)
            _accept(project, found, f"identity.environment: {level}")
        except ShardlineError as error:
            _LOG.warning("%s is not accepted: %s", found.earlier_title, error)
            continue
        _LOG.warning("%s is accepted as %s", found.earlier_title, found.title)


def _fits(found: Candidate, level: str) -> bool:
    if not is_near(found.document, found.asked.document, level):
        return False
    if isinstance(found.asked, DatasetPlan):
        return True
    if not has_bases_of(found.asked, found.document, {}):  # one of them was not accepted
        return False
    layout, present = found.asked.layout, [part.dataset for part in found.asked.parts]
    before = weights_of_inputs(found.document["inputs"]).keys() - {one.id for one in present}
    documents = [read_manifest(layout, earlier).identity for earlier in before]
    return all(any(is_near(old, one.document, level) for one in present) for old in documents)


def _accept(project: Project, found: Candidate, reason: str) -> None:
    if isinstance(found.asked, DatasetPlan):
        accept_dataset(project, found, reason=reason)
        return
    # only the environment differs, so the model is the same
    assert isinstance(found.asked, RunPlan)
    earlier = found.asked.folder.with_name(found.earlier)
    has_evaluation = fitting_evaluation(found.asked, earlier) is not None
    accept_run(project, found, reason=reason, with_evaluation=has_evaluation, checks_model=False)
