"""A sealed run as it was recorded: found by name or id, verified against its checksums and its code."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec import structs

from shardline.config.causes import find_causes
from shardline.config.evaluation_code import metric_paths
from shardline.config.layout import ResultsLayout
from shardline.config.names import identities_of, names_that_have_been, title_of
from shardline.config.project import Project
from shardline.config.resolved import settings_of, with_legacy_values
from shardline.config.run_spec import DatasetPlace, RunSpec
from shardline.config.sample_code import paths_of
from shardline.config.scripts import is_script
from shardline.core.errors import ConfigError, DataError
from shardline.core.suggest import did_you_mean
from shardline.records.acceptances import Accepted, accepted_of
from shardline.records.base import read_record
from shardline.records.identities import IdentityDocument, read_identity
from shardline.records.runs import EvaluationResult, ResolvedRun, TrainingProvenance
from shardline.results.staleness import read_definitions
from shardline.results.states import IDENTITY
from shardline.results.verify_runs import verify_run

REMAKE = "run the pipeline again to write it"


@dataclass(frozen=True, kw_only=True)
class SealedRun:
    """What is sealed of a run, whether the present config names it or not.

    Attributes:
        id: digest of the training's identity.
        layout: where its files lie.
        evaluation_file: the evaluation that is meant; None if there is none.
    """

    id: str
    layout: ResultsLayout
    evaluation_file: Path | None

    @property
    def title(self) -> str:
        """Its latest name, with its id, as people read it."""
        return title_of(self.id, names_that_have_been(self.layout, "run"))

    @property
    def file_title(self) -> str:
        """Its latest name and its id, as a file's name."""
        names = names_that_have_been(self.layout, "run").get(self.id, [])
        return "-".join([*names[-1:], self.id])

    @property
    def folder(self) -> Path:
        """The folder of sealed results."""
        return self.layout.run(self.id)

    @property
    def manifest(self) -> Path:
        """The sealed manifest of its first dataset."""
        return self.datasets[0].manifest

    @property
    def datasets(self) -> tuple[DatasetPlace, ...]:
        """Where its datasets are."""
        return tuple(
            DatasetPlace(
                manifest=self.layout.manifest(key), shards=self.layout.shards(key), weight=weight
            )
            for key, weight in self.spec.mix.items()
        )

    @property
    def model(self) -> Path:
        """The sealed weights."""
        return self.layout.model(self.id)

    @cached_property
    def spec(self) -> ResolvedRun:
        """`run.json`, with the settings of the evaluation that is meant."""
        spec = read_record(self.folder / "run.json", ResolvedRun, remedy=REMAKE)
        settings = with_legacy_values(spec.settings, settings_of("train"))
        if self.evaluation:
            evaluated = self.evaluation.identity["settings"]
            settings["evaluation"] = with_legacy_values(evaluated, settings_of("evaluate"))
        return structs.replace(spec, settings=settings)

    @property
    def run_spec(self) -> RunSpec:
        """The run as it is evaluated."""
        return RunSpec.of(self.spec)

    @cached_property
    def identity(self) -> IdentityDocument:
        """The identity document of the training."""
        return read_identity(self.folder / "identity.json", remedy=REMAKE)

    @cached_property
    def provenance(self) -> TrainingProvenance | None:
        """`provenance.json`; None before the training has ended."""
        path = self.folder / "provenance.json"
        return read_record(path, TrainingProvenance, remedy=REMAKE) if path.exists() else None

    @cached_property
    def accepted(self) -> Accepted | None:
        """`accepted.json`; None where the files are the run's own."""
        return accepted_of(self.folder)

    @cached_property
    def evaluation(self) -> EvaluationResult | None:
        """The evaluation that is meant; None if there is none."""
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
    """Return the evaluation that was written last in a run's folder; None if there is none."""
    files = (folder / "evaluations").glob("*.json")
    return max(files, key=lambda file: file.stat().st_mtime_ns, default=None)


def check_repeatable(project: Project, recorded: SealedRun, verb: str, *, force: bool) -> list[str]:
    """Reject a run that Shardline did not evaluate, whose files are not as they were sealed, or whose code changed.

    Args:
        verb: what is to be done with the run, such as `replayed`.
        force: take the code of now, whatever it is.

    Returns:
        How the code that evaluates the run differs now from that of its evaluation.

    Raises:
        ConfigError: a training script evaluated its own model, or the code differs; the message names how.
        DataError: the run has no evaluation, or a sealed file is damaged; names each file.
    """
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
            f"{recorded.title} was evaluated with other code than there is now: {'; '.join(changes)}; check out the "
            f"code of then (`shardline diff` names the commits), or have it {verb} with that of now: --force"
        )
    return changes


def _changed_code(project: Project, recorded: SealedRun, evaluation: EvaluationResult) -> list[str]:
    before = {key: evaluation.identity.get(key, {}) for key in ("versions", "code")}
    settings = recorded.spec.settings
    paths = {
        "model": recorded.spec.model_class,
        **paths_of(settings["data"], project.code, recorded.title),
        **metric_paths(settings["evaluation"], project.code, recorded.title),
    }
    made_by = project.documents.evaluated_by(settings, paths)
    now = {key: made_by[key] for key in before}
    definitions = (
        read_definitions(recorded.folder),
        project.documents.definitions(paths),
    )
    return [cause.text for cause in find_causes(before, now, definitions)]
