"""Trials with a storage: which files come back from the jobs' machines, and where they are put on this one.

The runs of trials are not known at the start, so Snakemake does not move their files. A trial's job packs them into one
declared file, and the command that started it unpacks this file into `results/runs/`. Proposals and the seal of a study
are local jobs that read the project's folder, so the results that they wait for are copied there first.
"""

import re
import shutil
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from zipfile import ZipFile

from shardline.config.layout import ResultsLayout, add_names, names_that_have_been
from shardline.config.project import Project
from shardline.config.sweeps import SweepPlan
from shardline.core.errors import ConfigError
from shardline.core.files import atomic_writer, make_folder, renamed_when_complete
from shardline.records.sweeps import Proposal
from shardline.results.sweeps.trials import name_of_training, read_proposal

SEALED = ("run.json", "identity.json", "metrics.jsonl", "provenance.json", "model.safetensors")
_MEMBER = re.compile(rf"[0-9a-f]{{12}}/({'|'.join(map(re.escape, SEALED))})")


def files_of_study(plan: SweepPlan, layout: ResultsLayout) -> Iterator[Path]:
    """Yield every file of a study that a storage contains."""
    yield plan.summary(layout)
    for slot in plan.slots:
        yield plan.proposal(layout, slot)
        for result in plan.results(layout, slot):
            yield from (result, packed(result))


def packed(result: Path) -> Path:
    """Return the file with the runs of a trial's training, beside its result."""
    return result.with_name(result.name.replace("result-", "runs-")).with_suffix(".zip")


def declared_path(layout: ResultsLayout, path: Path) -> Path:
    """Return the declared path of a file, which may be a local copy."""
    last = len(path.parts) - 1 - path.parts[::-1].index(layout.results.name)
    return Path(*path.parts[last:])


def bring_home(layout: ResultsLayout, files: Iterable[str | Path]) -> None:
    """Copy a job's files to their declared paths, where the project's loaders read them; nothing without a storage."""
    for path in map(Path, files):
        home = declared_path(layout, path)
        if home.absolute() != path.absolute():
            make_folder(home.parent)
            with renamed_when_complete(home) as scratch:
                shutil.copyfile(path, scratch)


def pack(layout: ResultsLayout, runs: Iterable[str], output: Path) -> None:
    """Write the sealed files of a trial's runs, those that exist, into one file."""
    with renamed_when_complete(output) as scratch, ZipFile(scratch, "w") as archive:
        for run in dict.fromkeys(filter(None, runs)):
            for path in (layout.run(run) / name for name in SEALED):
                if path.is_file():
                    archive.write(path, f"{run}/{path.name}")


def unpack(project: Project) -> None:
    """Put the runs of all trials that were fetched from a storage into their folders, and record their names."""
    layout = project.layout
    known, names = names_that_have_been(layout, "run"), dict[str, str]()
    for plan in project.sweeps.values():
        for slot in plan.slots:
            for repeat, result in enumerate(plan.results(layout, slot)):
                path, proposal = packed(result), plan.proposal(layout, slot)
                new = _unpack(layout, path) - known.keys() - names.keys() if path.is_file() else ()
                if new and proposal.is_file():
                    names |= _names(plan, read_proposal(proposal), repeat, new)
    add_names(layout, [("run", name, run) for run, name in names.items()])


def _unpack(layout: ResultsLayout, path: Path) -> set[str]:
    """Write the files that are missing, and return the runs of which there are files."""
    with ZipFile(path) as archive:
        members = [name for name in archive.namelist() if _MEMBER.fullmatch(name)]
        for name in members:
            target = layout.folder_of("run") / name
            if not target.exists():
                with archive.open(name) as source, atomic_writer(target) as file:
                    shutil.copyfileobj(source, file)
    return {name.partition("/")[0] for name in members}


def _names(plan: SweepPlan, found: Proposal, repeat: int, new: Container[str]) -> dict[str, str]:
    """Return the names of a training's runs by id, of those that are new."""
    rungs = range(len(found.runs)) if plan.median else [found.rung]
    runs = found.runs if plan.median else found.runs[repeat : repeat + 1]
    return {
        run: name_of_training(plan, found.trial, repeat, rung)
        for rung, run in zip(rungs, runs, strict=True)
        if run in new
    }


def check_no_combined_trials(project: Project) -> None:
    """Reject averages and ensembles of a sweep's trials, whose weights are not declared.

    Raises:
        ConfigError: A row combines the trials of a sweep.
    """
    for run in project.runs.values():
        if base := run.study:
            raise ConfigError(
                f"{run.row.where}: {base.kind}={base.name} combines the trials of a sweep, which the jobs of a storage "
                "for results (default-storage-provider) cannot read; paste the rows of the trials that "
                f"`shardline best {base.name}` and `shardline ls --study {base.name}` print, and combine these rows"
            )
