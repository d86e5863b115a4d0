"""The command `predict`, which runs the steps of the prediction rules in one process."""

import glob
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer
from msgspec import structs

from shardline.cli.app import AsJson, app
from shardline.cli.display.terminal import say, say_json
from shardline.config.combined import with_members
from shardline.config.load import load_project
from shardline.config.objects import code_of
from shardline.config.plans import DatasetPlan, PredictionPlan, RunPlan
from shardline.config.predictions import files_as_dataset, join_folds, make_prediction
from shardline.config.project import Project
from shardline.config.resolved import RunSpec, as_plain
from shardline.core.errors import ConfigError, DataError
from shardline.core.files import writing
from shardline.core.one_lightning import keep
from shardline.core.suggest import suggest
from shardline.records.base import read_record
from shardline.records.evaluations import PredictionResult
from shardline.results.accept.replaced_folders import link
from shardline.results.sealed_run import SealedRun, check_repeatable, find_sealed_run


@app.command("predict")
def predict(
    context: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Name, id or earlier id of a run; or the name of all its folds."
        ),
    ],
    rows: Annotated[
        list[str],
        typer.Argument(metavar="DATASET|FILES...", help="Dataset of the config, or files."),
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="Parquet file to write.")] = Path(
        "predictions.parquet"
    ),
    split: Annotated[
        Literal["train", "validation", "test"],
        typer.Option(help="Rows of a dataset to predict; of files, all rows are predicted."),
    ] = "test",
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Use the present code, even if it differs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict the rows of a dataset or of files with a sealed model.

    Reads files like the data that the run was trained on; they need no labels.
    If the command is killed, the same command resumes. Nothing is overwritten.
    For a run with fold: all, each row is predicted by the model that did not train on it.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.path.insert(0, str(Path.cwd()))  # the user's modules
    project = load_project(config_file=context.obj)
    if folds := folds_of(project, run):
        own = (*folds[0].dataset.names, folds[0].dataset.id)
        if len(rows) != 1 or rows[0] not in own or split != "test":
            raise ConfigError(
                f"predict {run}: each of its folds predicts the rows that it was not trained on, expected its dataset "
                f"and no --split; write `shardline predict {run} {folds[0].dataset.names[0]}`, or name one fold"
            )
        title, found = run, predict_folds(project, run, folds, output=output, force=force)
    else:
        recorded = find_sealed_run(project, run)
        title = recorded.title
        found = predict_rows(project, recorded, rows, split=split, output=output, force=force)
    if as_json:
        say_json(found)
    else:
        say(f"{found.rows:,} rows predicted by {title}: {found.output}")


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Result of `shardline predict`.

    Attributes:
        run: Id of the run; of all folds, their name.
        prediction: Id of the prediction.
        rows: Number of predicted rows.
        output: Written file, as given by --output.
        file: The same file in the results folder.
        code: Differences between the present code and that of the run's evaluation; empty without --force.
    """

    run: str
    prediction: str
    rows: int
    output: Path
    file: Path
    code: list[str]


def predict_rows(
    project: Project, recorded: SealedRun, rows: Sequence[str], *, split: str, output: Path, force: bool
) -> Predicted:  # fmt: skip
    """Predict the rows of a dataset or of files, and write a Parquet file.

    Args:
        rows: Name of one dataset of the config, or files and patterns.
        output: Parquet file to write; must not exist.
        force: Use the present code even if it differs from that of the evaluation.

    Raises:
        ConfigError: A dataset or file does not exist, the output exists, or the run cannot predict.
        DataError: The columns differ from those of the training data, or a sealed file is damaged.
    """
    _check_output(output)
    changes = check_repeatable(project, recorded, "used to predict", force=force)
    prediction = _prediction(project, recorded, rows, split)
    project.digests.save()
    if not (prediction.file.exists() and prediction.record.exists()):
        _make(project, prediction, recorded)
    return _result(prediction, recorded.id, output, changes)


def folds_of(project: Project, name: str) -> list[RunPlan]:
    """Return the runs of a row with `fold: all`, by the row's name; empty for another name."""
    return [run for run in project.runs.values() if name in {row.folds_of for row in run.rows}]


def predict_folds(
    project: Project, name: str, folds: Sequence[RunPlan], *, output: Path, force: bool
) -> Predicted:
    """Predict all rows of a dataset with folds, each with the model that did not train on it.

    Args:
        name: Name of the row of the run table.
        folds: Run of each fold, in order.
        output: Parquet file to write; must not exist.
        force: See `predict_rows`.

    Raises:
        ConfigError: The output exists, or a run cannot predict.
        DataError: A run is not sealed, or a sealed file is damaged.
    """
    _check_output(output)
    made, changes = [], []
    for run in folds:
        recorded = find_sealed_run(project, run.id)
        changes += check_repeatable(project, recorded, "used to predict", force=force)
        one = _prediction(project, recorded, [run.dataset.id], "test")
        if not (one.file.exists() and one.record.exists()):
            _make(project, one, recorded)
        made.append(one)
    joined = join_folds(project, made)
    project.digests.save()
    if not (joined.file.exists() and joined.record.exists()):
        from shardline.pipeline.prediction_files import write_folds

        write_folds(joined, joined.file, joined.record)
    return _result(joined, name, output, list(dict.fromkeys(changes)))


def _check_output(output: Path) -> None:
    if output.suffix != ".parquet":
        raise ConfigError(
            f"--output {output} does not end in .parquet, the only format of predictions; name a .parquet file, and "
            "convert it if you need another format, such as with pandas: read_parquet(...).to_csv(...)"
        )
    if output.exists() or output.is_symlink():
        raise ConfigError(
            f"{output} exists already, and nothing is overwritten; delete it, or name another file: --output FILE"
        )


def _result(prediction: PredictionPlan, run: str, output: Path, changes: list[str]) -> Predicted:
    from shardline.pipeline.job_frame import REMAKE

    with writing(output):
        link(prediction.file, output)
    found = read_record(prediction.record, PredictionResult, remedy=REMAKE)
    return Predicted(
        run=run, prediction=prediction.id, rows=found.rows, output=output, file=prediction.file,
        code=changes,
    )  # fmt: skip


def _prediction(
    project: Project, recorded: SealedRun, rows: Sequence[str], split: str
) -> PredictionPlan:
    spec = with_members(RunSpec.of(recorded.spec, name=recorded.title), project.layout)
    if (
        run := project.runs.get(recorded.id)
    ) is not None:  # its class may have moved since the training
        spec = run.spec
    paths = {
        "model": spec.model_class,
        **code_of(as_plain(spec.settings), spec.model_class, project.code, recorded.title),
    }
    spec = structs.replace(spec, lightning=project.documents.lightning_of(paths))
    keep(spec.lightning)  # rows to predict may be built in this process too
    weights = recorded.spec.mix
    dataset = _dataset(project, recorded, rows, list(weights))
    is_named = dataset.read_as is None
    where = f"predict {recorded.title}"
    return make_prediction(
        project, spec, paths, weights, dataset, split if is_named else "test", where
    )


def _dataset(
    project: Project, recorded: SealedRun, rows: Sequence[str], trained_on: Sequence[str]
) -> DatasetPlan:
    """Return the named dataset, or a dataset of the given files."""
    named = {name: one for one in project.built.values() for name in one.names}
    named |= {one.id: one for one in project.built.values()}
    if len(rows) == 1 and rows[0] in named:
        return named[rows[0]]
    datasets = [project.datasets[key] for key in trained_on if key in project.datasets]
    if len(trained_on) != 1:
        raise ConfigError(
            f"{recorded.title} was trained on {len(trained_on)} datasets, so Shardline cannot know which source reads "
            f"these files; name a dataset of the config instead: {', '.join(named)}"
        )
    if not datasets:
        raise ConfigError(
            f"the config no longer contains dataset {trained_on[0]}, which {recorded.title} was trained on and whose "
            "source would read these files; restore its entry and files, or check out the config of the training"
        )
    for one in rows:
        if not glob.glob(one) and not Path(one).exists():  # noqa: PTH207  # pathlib has no absolute patterns
            hint = suggest(one, named)
            raise ConfigError(f"{one} is neither a dataset of the config nor a file; {hint}")
    return files_as_dataset(project, rows, datasets[0], "FILES")


def _make(project: Project, prediction: PredictionPlan, recorded: SealedRun) -> None:
    # they import NumPy, which other commands do not need
    from shardline.pipeline.dataset_jobs import build_part, seal_parts
    from shardline.pipeline.predicting import compute_parts
    from shardline.pipeline.prediction_files import write_file

    rows, layout = prediction.rows, project.layout.declared
    if not rows.manifest.exists():
        if rows.read_as is None:
            raise DataError(
                f"dataset {rows.name} is not sealed ({layout.manifest(rows.id)} is missing); build it first: "
                f"`snakemake {layout.manifest(rows.id)}` with your profile"
            )
        for part in rows.parts:
            listed = layout.parts(rows.id) / f"{part}.json"
            if not listed.exists():
                build_part(project, rows, part, listed)
        manifest = layout.manifest(rows.id)
        seal_parts(project, rows, manifest, manifest.with_name("provenance.json"))
    log = layout.log("predict", f"{recorded.id}-{prediction.id}")
    log.parent.mkdir(parents=True, exist_ok=True)
    record = compute_parts(
        project, prediction, recorded.model, recorded.datasets, layout.manifest(rows.id), log
    )
    file = layout.prediction(recorded.id, prediction.id)
    write_file(prediction, record, file, file.with_suffix(".json"))
    if rows.id not in project.built:  # no later command needs the shards of these files
        for folder in (rows.manifest.parent, project.layout.shards(rows.id)):
            shutil.rmtree(folder, ignore_errors=True)
