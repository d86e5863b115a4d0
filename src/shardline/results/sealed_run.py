"""Sealed runs: find a run by name or id, and check its files and code."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec import structs

from shardline.config.causes import find_causes
from shardline.config.layout import ResultsLayout, identities_of, names_that_have_been, title_of
from shardline.config.objects import code_of
from shardline.config.project import Project
from shardline.config.resolved import DatasetPlace, RunSpec, settings_of, with_legacy_values
from shardline.config.scripts import is_script
from shardline.core.errors import ConfigError, DataError
from shardline.core.suggest import did_you_mean
from shardline.records.acceptances import Accepted, accepted_of
from shardline.records.base import read_record
from shardline.records.evaluations import EvaluationResult
from shardline.records.identities import IdentityDocument, read_identity
from shardline.records.runs import ResolvedRun
from shardline.records.trainings import TrainingProvenance
from shardline.results.staleness import read_definitions
from shardline.results.states import IDENTITY

REMAKE = "run the pipeline again to write it"


@dataclass(frozen=True, kw_only=True)
class SealedRun:
    """A sealed run, in the config or not.

    Attributes:
        id: Id of the run.
        layout: Layout of results and store.
        evaluation_file: File of the evaluation, or None.
    """

    id: str
    layout: ResultsLayout
    evaluation_file: Path | None

    @property
    def title(self) -> str:
        """Latest name and id, for messages."""
        return title_of(self.id, names_that_have_been(self.layout, "run"))

    @property
    def file_title(self) -> str:
        """Latest name and id, as a file name."""
        names = names_that_have_been(self.layout, "run").get(self.id, [])
        return "-".join([*names[-1:], self.id])

    @property
    def folder(self) -> Path:
        """Folder of the sealed files."""
        return self.layout.run(self.id)

    @property
    def manifest(self) -> Path:
        """Manifest of the first dataset."""
        return self.datasets[0].manifest

    @property
    def datasets(self) -> tuple[DatasetPlace, ...]:
        """Manifests, shards and weights of the datasets."""
        return tuple(
            DatasetPlace(
                manifest=self.layout.manifest(key),
                shards=self.layout.shards(key),
                weight=weight,
                fold=self.run_spec.settings.tested_fold,
            )
            for key, weight in self.spec.mix.items()
        )

    @property
    def model(self) -> Path:
        """File of the sealed weights."""
        return self.layout.model(self.id)

    @cached_property
    def spec(self) -> ResolvedRun:
        """`run.json`, with the settings of the evaluation."""
        spec = read_record(self.folder / "run.json", ResolvedRun, remedy=REMAKE)
        settings = with_legacy_values(spec.settings, settings_of("train"))
        if self.evaluation:
            evaluated = self.evaluation.identity["settings"]
            settings["evaluation"] = with_legacy_values(evaluated, settings_of("evaluate"))
        return structs.replace(spec, settings=settings)

    @property
    def run_spec(self) -> RunSpec:
        """The run in the form that an evaluation needs."""
        return RunSpec.of(self.spec)

    @cached_property
    def identity(self) -> IdentityDocument:
        """Identity document of the training."""
        return read_identity(self.folder / "identity.json", remedy=REMAKE)

    @cached_property
    def provenance(self) -> TrainingProvenance | None:
        """`provenance.json`; None before the training has ended."""
        path = self.folder / "provenance.json"
        return read_record(path, TrainingProvenance, remedy=REMAKE) if path.exists() else None

    @cached_property
    def accepted(self) -> Accepted | None:
        """`accepted.json`, or None if the run was not accepted."""
        return accepted_of(self.folder)

    @cached_property
    def evaluation(self) -> EvaluationResult | None:
        """Record of the evaluation, or None."""
        path = self.evaluation_file
        return read_record(path, EvaluationResult, remedy=REMAKE) if path else None


def find_sealed_run(project: Project, wanted: str, *, or_earlier: bool = False) -> SealedRun:
    """Return the run with a name or id of the config, or with an id in results/runs.

    Args:
        or_earlier: For a stale name, return the latest sealed run that had the name.

    Raises:
        ConfigError: No such run is recorded. The message lists earlier ids of the name, or the nearest name.
    """
    layout, present, named = project.layout, project.runs, project.named_runs()
    run = named.get(wanted) or present.get(wanted)
    sealed = {file.parent.name for file in layout.folder_of("run").glob("*/run.json")}
    sealed = {name for name in sealed if IDENTITY.fullmatch(name)}
    if run and run.id in sealed:
        own = run.evaluation if run.evaluation.exists() else None
        own = own or newest_evaluation(run.folder)
        return SealedRun(id=run.id, layout=layout, evaluation_file=own)
    earlier = [item for item in identities_of(layout, "run", wanted) if item in sealed]
    # an id, or an earlier name
    if meant := [wanted] if wanted in sealed else [] if run and not or_earlier else earlier[:1]:
        evaluation = newest_evaluation(layout.run(meant[0]))
        return SealedRun(id=meant[0], layout=layout, evaluation_file=evaluation)
    if run:
        known = f"name an earlier id ({', '.join(earlier)})" if earlier else "run the pipeline"
        raise ConfigError(f'run "{wanted}" ({run.id}) has no result yet; {known}')
    names = [*named, *present, *sealed]
    listed = "`shardline ls` lists the config's"
    remedy = did_you_mean(wanted, names, otherwise=listed, cutoff=0.4)
    raise ConfigError(
        f'neither the config nor {layout.folder_of("run")} has a run "{wanted}"; {remedy}'
    )


def newest_evaluation(folder: Path) -> Path | None:
    """Return the newest evaluation in a run's folder, or None."""
    files = (folder / "evaluations").glob("*.json")
    return max(files, key=lambda file: file.stat().st_mtime_ns, default=None)


def check_repeatable(project: Project, recorded: SealedRun, verb: str, *, force: bool) -> list[str]:
    """Reject a run with damaged files, with changed code, or without an evaluation by Shardline.

    Args:
        verb: Purpose of the call, for the message, such as `replayed`.
        force: Allow changed code.

    Returns:
        Differences between the present code and that of the evaluation.

    Raises:
        ConfigError: A training script evaluated its own model, or the code differs.
        DataError: The run has no evaluation, or sealed files are damaged. The message names each file.
    """
    # only some of the commands that read sealed runs need NumPy
    from shardline.results.verify_runs import verify_run

    if problems := verify_run(recorded.layout, recorded.id).problems:
        raise DataError("\n".join(problems))
    if is_script(recorded.spec.model_class):
        raise ConfigError(
            f"{recorded.title} cannot be {verb}: {recorded.spec.model_class} evaluates its model itself, so "
            "Shardline cannot; `shardline verify` verifies its files against their checksums"
        )
    if not recorded.evaluation:
        raise DataError(
            f"{recorded.title} has no evaluation, so it cannot be {verb}; run the pipeline to its end"
        )
    changes = _changed_code(project, recorded, recorded.evaluation)
    if changes and not force:
        raise ConfigError(
            f"{recorded.title} was evaluated with other code than the present code: {'; '.join(changes)}; check out "
            "the earlier code (`shardline diff` lists the commits), or use the present code: --force"
        )
    return changes


def _changed_code(project: Project, recorded: SealedRun, evaluation: EvaluationResult) -> list[str]:
    before = {key: evaluation.identity.get(key, {}) for key in ("versions", "code")}
    settings = recorded.spec.settings
    paths = {
        "model": recorded.spec.model_class,
        **code_of(settings, recorded.spec.model_class, project.code, recorded.title),
    }
    made_by = project.documents.evaluated_by(settings, paths)
    now = {key: made_by[key] for key in before}
    definitions = (
        read_definitions(recorded.folder),
        project.documents.definitions(paths),
    )
    return [cause.text for cause in find_causes(before, now, definitions)]
