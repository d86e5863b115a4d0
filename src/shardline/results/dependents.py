"""Runs that begin from other runs, and what a deletion of these means for them."""

from collections.abc import Collection, Iterator

from shardline.config.bases import digests_in, has_study
from shardline.config.layout import names_that_have_been
from shardline.config.project import Project, titles_of
from shardline.core.canonical import DIGEST_LENGTH
from shardline.results.states import read_if_sound
from shardline.results.sweeps.combined_trials import known_members, recorded_members


def tell_dependents(project: Project, ids: Collection[str]) -> list[str]:
    """Return a sentence for each run that begins from one of some runs, which are about to be deleted.

    Args:
        ids: Ids of runs; runs among them are no dependents.
    """
    titles = {
        key: f"{names[-1]} ({key})"
        for key, names in names_that_have_been(project.layout, "run").items()
    } | titles_of(project)
    configured = {run.id for run in project.runs.values()}
    return [
        _sentence(
            titles.get(run, run),
            titles.get(base, base),
            is_sealed=project.layout.model(run).exists(),
            is_made_again=base in configured,
        )
        for run, base in dict.fromkeys(_edges(project))
        if base in ids and run not in ids
    ]


def _edges(project: Project) -> Iterator[tuple[str, str]]:
    """Yield run and base, of the config and of recorded runs."""
    for run in project.runs.values():
        yield from ((run.id, base.run) for base in run.bases if base.run)
        yield from ((run.id, member) for member in known_members(run))
    for file in sorted(project.layout.folder_of("run").glob("*/identity.json")):
        document = read_if_sound(file)
        for digest in digests_in(document):
            yield file.parent.name, digest[:DIGEST_LENGTH]
        if has_study(document):
            for member in recorded_members(read_if_sound(file.with_name("provenance.json"))):
                yield file.parent.name, member


def _sentence(run: str, base: str, *, is_sealed: bool, is_made_again: bool) -> str:
    if is_sealed:
        return f"{run} began from {base}; its own result stays"
    if is_made_again:
        return f"{run} begins from {base}, which the next `snakemake` trains again first"
    return f"{run} begins from {base}, and cannot be trained without it"
