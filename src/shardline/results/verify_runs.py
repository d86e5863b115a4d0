"""Verification of a run's sealed files."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import structs
from safetensors import SafetensorError, safe_open

from shardline.config.code_paths import SHIPPED_MODELS
from shardline.config.documents import counted_settings
from shardline.config.layout import ResultsLayout
from shardline.config.plans import pointer
from shardline.config.scripts import is_script
from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.errors import DataError
from shardline.records.acceptances import ACCEPTED, Accepted
from shardline.records.base import read_record
from shardline.records.evaluations import EvaluationResult, PredictionResult
from shardline.records.identities import IdentityDocument, read_identity, weights_of_inputs
from shardline.records.origins import BaseRef
from shardline.records.runs import ResolvedRun
from shardline.records.trainings import TrainingProvenance
from shardline.results.findings import Findings, VerifyResult, count, digest_of
from shardline.results.sweeps.combined_trials import choose_trials
from shardline.results.sweeps.trials import read_study
from shardline.results.verify_store import check_training


def verify_run(layout: ResultsLayout, run_id: str, *, deep: bool = False) -> VerifyResult:
    """Verify the sealed files of a run against each other, the identity and the dataset's manifest.

    Args:
        deep: Verify the training checkpoints and attempts in the store too.
    """
    folder = layout.run(run_id)
    remedy = f"delete {folder} and run the pipeline again"
    findings = Findings(VerifyResult(kind="run", id=run_id), remedy)
    findings.verdict.summary = _check_run(findings, layout, folder, deep=deep)
    return findings.verdict


def _check_run(findings: Findings, layout: ResultsLayout, folder: Path, *, deep: bool) -> str:
    spec = findings.record(folder / "run.json", ResolvedRun)
    document = findings.read(read_identity, folder / "identity.json")
    if spec is None or document is None:
        return ""
    _check_spec(findings, folder, spec, document)
    accepted = _check_accepted(findings, folder, digest_of(document))
    # an accepted model contains the identity of its training
    trained_as = accepted.origin.identity if accepted else spec.identity
    trained = _check_results(findings, layout, folder, list(spec.mix), trained_as)
    if not accepted:
        _check_bases(findings, layout, folder, spec)
    trained += f", accepted from {accepted.from_.id}" if accepted else ""
    if not deep:
        return trained
    return f"{trained}, {_check_work(findings, layout, folder, spec, is_own=not accepted)}"


def _check_work(
    findings: Findings, layout: ResultsLayout, folder: Path, spec: ResolvedRun, *, is_own: bool
) -> str:
    """Verify the files of a run in the store.

    Args:
        is_own: Whether the result was trained there, and not accepted from another run.
    """
    work, path = layout.work(folder.name), folder / "provenance.json"
    provenance = TrainingProvenance()
    if is_own and path.exists():
        with suppress(DataError):  # its damage was reported before
            provenance = read_record(path, TrainingProvenance, remedy="")
    looked_at, problems = check_training(work, spec, provenance)
    findings.verdict.problems.extend(problems)
    if not (work / "ledger").is_dir():
        return looked_at
    from shardline.config.resolved import DatasetPlace, RunSpec, settings_of, with_legacy_values
    from shardline.results.verify_ledger import problems_of_ledger

    settings = with_legacy_values(spec.settings, settings_of("train"))
    run = RunSpec.of(structs.replace(spec, settings=settings))
    datasets = [
        DatasetPlace(
            manifest=layout.manifest(key),
            shards=layout.shards(key),
            weight=weight,
            fold=run.settings.tested_fold,
        )
        for key, weight in spec.mix.items()
    ]
    files, problems = problems_of_ledger(work / "ledger", run, datasets, provenance.training)
    about = findings.but("delete the file; no result reads it, and a training writes its own")
    for problem in problems:
        about.add(problem)
    return f"{looked_at}, {count(files, 'file')} of the ledger"


def _check_accepted(findings: Findings, folder: Path, identity: str) -> Accepted | None:
    """Verify and return the record of an acceptance; None if the run was not accepted."""
    path = folder / ACCEPTED
    if not path.exists():
        return None
    accepted = findings.record(path, Accepted)
    if accepted is None:
        return None
    findings.expect(f"{path}: id", accepted.id, folder.name)
    findings.expect(f"{path}: identity", accepted.identity, identity)
    origin = accepted.origin
    what = f"{path}: the digest of the identity that was accepted"
    findings.expect(what, digest_of(origin.document), origin.identity)
    for name, sha256 in accepted.files.items():
        findings.expect_sha256(folder / Path(name).name, sha256)
    return accepted


def _check_results(
    findings: Findings, layout: ResultsLayout, folder: Path, datasets: list[str], trained_as: str
) -> str:
    model, what = folder / "model.safetensors", "model"
    if model.exists():
        _check_model(findings, model, trained_as)
    elif _is_elsewhere(model):
        what = "model in the storage (not verified)"
    else:
        return "not trained yet"
    _check_metrics(findings, folder / "metrics.jsonl")
    sealed = _check_provenance(findings, layout, folder, datasets, trained_as)
    evaluations = sorted((folder / "evaluations").glob("*.json"))
    for path in evaluations:
        _check_evaluation(findings.but(f"delete {path} and run the pipeline again"), path, sealed)
    for path in sorted((folder / "predictions").glob("*.json")):
        if not path.name.endswith(".parts.json"):
            remedy = f"delete {path} and {path.stem}.parquet, and predict again"
            _check_prediction(findings.but(remedy), path)
    return f"{what}, metrics, provenance, {count(len(evaluations), 'evaluation')}"


def _check_prediction(findings: Findings, path: Path) -> None:
    record = findings.record(path, PredictionResult)
    if record is not None:
        identity = digest_of(record.identity)[:DIGEST_LENGTH]
        findings.expect(f"{path}: the digest of its identity", identity, path.stem)
        file = path.with_suffix(".parquet")
        findings.expect_sha256(file, record.files.get(file.name, ""))


def _check_spec(
    findings: Findings, folder: Path, spec: ResolvedRun, document: IdentityDocument
) -> None:
    path, identity = folder / "run.json", digest_of(document)
    findings.expect(
        f"{folder / 'identity.json'}: its digest",
        identity[:DIGEST_LENGTH],
        folder.name,
    )
    findings.expect(f"{path}: identity", spec.identity, identity)
    findings.expect(f"{path}: run", spec.run, folder.name)
    if named := document.get("model"):  # for a class of the user, only the code counts
        model_class = SHIPPED_MODELS.get(named, named)
        findings.expect(f"{path}: model_class", spec.model_class, model_class)
    read, counted = spec.mix, weights_of_inputs(document.get("inputs", {}))
    if read != counted:
        findings.expect(f"{path}: dataset", _listed(read), _listed(counted))
    bases = [one.counted for one in spec.bases or []]
    findings.expect(f"{path}: bases", bases, document.get("inputs", {}).get("bases") or [])
    settings = counted_settings(spec.settings, is_script=is_script(spec.model_class))
    settings.pop("evaluation", None)
    if digest_of(settings) != digest_of(document["settings"]):
        findings.add(f"{path}: the settings differ from those in identity.json")


def _check_model(findings: Findings, path: Path, expected: object) -> None:
    try:
        with safe_open(path, framework="np") as weights:
            metadata = weights.metadata() or {}
    except (SafetensorError, OSError) as error:
        findings.add(f"{path} is not a whole safetensors file ({error})")
        return
    findings.expect(f"{path}: identity in its metadata", metadata.get("identity"), expected)


def _check_metrics(findings: Findings, path: Path) -> None:
    try:
        lines = path.read_text().splitlines()
    except (OSError, ValueError) as error:
        findings.add(f"{path} cannot be read ({error})")
        return
    for number, line in enumerate(lines, 1):
        try:
            json.loads(line)["step"]
        except (ValueError, KeyError, TypeError, RecursionError):
            findings.add(f"{path}, line {number} is not a JSON object with a step")
            return


def _check_provenance(
    findings: Findings, layout: ResultsLayout, folder: Path, datasets: list[str], trained_as: str
) -> Mapping[str, str]:
    """Verify the provenance, and return the digests of the sealed files by name."""
    path = folder / "provenance.json"
    provenance = findings.record(path, TrainingProvenance)
    if provenance is None:
        return {}
    findings.expect(f"{path}: identity", provenance.identity, trained_as)
    for dataset in datasets:
        _check_manifest(findings, layout.manifest(dataset), provenance, dataset)
    if continued := provenance.continued:
        what = f"{path}: continued.run"
        findings.expect(what, continued.run, continued.identity[:DIGEST_LENGTH])
        steps = provenance.training.steps
        if isinstance(steps, int) and continued.step > steps:
            findings.add(f"{path}: continued.step is {continued.step}, after the last step {steps}")
    if certificate := provenance.certificate:
        about_certificate = findings.but("bring back the certificate that the training found")
        about_certificate.expect_sha256(layout.root / certificate.path, certificate.sha256)
    for name, sha256 in provenance.files.items():
        file = folder / Path(name).name
        if not _is_elsewhere(file):
            findings.expect_sha256(file, sha256)
    return provenance.files


def _check_bases(
    findings: Findings, layout: ResultsLayout, folder: Path, spec: ResolvedRun
) -> None:
    """Verify that a training began from the weights that its bases have now."""
    path = folder / "provenance.json"
    if not spec.bases or not path.exists():
        return
    bases: list[BaseRef] = []
    with suppress(DataError):  # its damage was reported before
        bases = read_record(path, TrainingProvenance, remedy="").bases or []
    # the trials of a study come after it
    known = [one.counted for one in bases][: len(spec.bases)]
    findings.expect(f"{path}: bases", known, [one.counted for one in spec.bases])
    for base in bases:
        beside = layout.run(base.run) / "provenance.json"
        if not (base.run and base.sha256) or base.state != "best" or not beside.exists():
            continue  # a deleted base is no damage
        with suppress(DataError):
            files = read_record(beside, TrainingProvenance, remedy="").files
            expected = files.get(layout.model(base.run).name, base.sha256)
            about = findings.but(f"bring back the weights of run {base.run}, or {findings.remedy}")
            about.expect(f"{path}: SHA-256 of the weights of run {base.run}", base.sha256, expected)
    for study in (one for one in bases if one.source == "sweep" and one.trials):
        sealed = layout.study(study.identity[:DIGEST_LENGTH]) / f"study-{study.trials}.json"
        if sealed.exists():  # a study that was made again may have other trials with a result
            best = (spec.settings.get(study.kind) or {}).get("best") or None
            trials = choose_trials(read_study(sealed), best).runs
            members = [one.run for one in bases if one.run]
            findings.expect(f"{path}: trials of {sealed}", members, trials)


def _check_manifest(
    findings: Findings, manifest: Path, provenance: TrainingProvenance, dataset: str
) -> None:
    """Verify the manifest of a training, or the one that it was accepted from."""
    known = provenance.manifests
    if known and dataset not in known:
        path = manifest.with_name(ACCEPTED)
        accepted = findings.record(path, Accepted) if manifest.exists() else None
        if accepted:  # a rebuilt dataset has no earlier bytes to compare with
            what = f"{path}: SHA-256 of the manifest that was accepted"
            only = next(iter(known.values())) if len(known) == 1 else None
            expected = known.get(accepted.from_.id, only)
            findings.expect(what, accepted.origin.manifest_sha256, expected)
        return
    expected = known.get(dataset) or provenance.manifest_sha256 or ""
    about = findings.but(f"bring back the manifest of the training, or {findings.remedy}")
    about.expect_sha256(manifest, expected)


def _listed(weights: Mapping[str, str]) -> str:
    if len(weights) == 1:
        return next(iter(weights))
    return ", ".join(f"{key} ({weight})" for key, weight in weights.items())


def _is_elsewhere(file: Path) -> bool:
    """Return whether a file is in a storage and was not fetched."""
    return not file.exists() and pointer(file).exists()


def _check_evaluation(findings: Findings, path: Path, sealed: Mapping[str, str]) -> None:
    evaluation = findings.record(path, EvaluationResult)
    if evaluation is not None:
        found = digest_of(evaluation.identity)[:DIGEST_LENGTH]
        findings.expect(f"{path}: the digest of its identity", found, path.stem)
        findings.expect(f"{path}: run", evaluation.run, path.parents[1].name)
        for name, sha256 in (evaluation.files or {}).items():  # scripts evaluate themselves
            findings.expect(
                f"{path}: SHA-256 of the evaluated {name}", sha256, sealed.get(name, sha256)
            )
