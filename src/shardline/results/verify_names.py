"""Verification of the links by name and of the history of names."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from shardline.config import layout as layouts
from shardline.config.layout import NamedKind, ResultsLayout, identities_of, names_that_have_been
from shardline.core.canonical import digest
from shardline.results.findings import Findings, VerifyResult, count
from shardline.results.states import IDENTITY

_ID = IDENTITY.pattern
_EVALUATION = ".evaluation.json"
_REQUIRED, _SEAL = {"kind", "name", "id"}, "sha256"


def verify_names(layout: ResultsLayout, *, deep: bool = False) -> VerifyResult:
    """Verify that each link by a name points to a result that has had the name.

    Args:
        deep: Verify each line of the history of names too, and that the history contains each result.
    """
    remedy = "delete the link, and the next `snakemake` makes it again"
    findings = Findings(VerifyResult(kind="names", id=str(layout.declared.results)), remedy)
    links = [found for found in _links(layout) if found[0].is_symlink()]
    for link, pattern, kind, name in links:
        if problem := _problem_of_link(layout, link, pattern, kind, name):
            findings.add(problem)
    findings.verdict.summary = count(len(links), "link")
    if deep:
        lines = _check_history(findings, layout.names_file)
        findings.verdict.summary += f", {count(lines, 'line')} of the history"
        _check_named(findings, layout)
    return findings.verdict


def _links(layout: ResultsLayout) -> Iterator[tuple[Path, str, NamedKind | None, str]]:
    """Yield each link with the pattern of its target, and the kind and name of the result."""
    runs, datasets, reports, _ = (
        re.escape(str(layout.folder_of(kind))) for kind in get_args(layouts.Kind)
    )
    yield layout.latest_report, f"{reports}/{_ID}", None, ""
    for link in sorted(layout.latest_runs.glob("*")):
        name = link.name.removesuffix(_EVALUATION)
        end = "" if name == link.name else rf"/evaluations/{_ID}\.json"
        yield link, f"{runs}/(?P<id>{_ID}){end}", "run", name
    for link in sorted(layout.latest_datasets.glob("*")):
        yield link, f"{datasets}/(?P<id>{_ID})", "dataset", link.name
    for link in sorted(layout.latest_predictions.glob("*")):
        yield link, rf"{runs}/{_ID}/predictions/{_ID}\.parquet", None, ""
    for folder in sorted(layout.folder_of("run").glob("*")):
        evaluations = re.escape(str(folder / "evaluations"))
        yield folder / "evaluation.json", rf"{evaluations}/{_ID}\.json", None, ""


def _problem_of_link(
    layout: ResultsLayout, link: Path, pattern: str, kind: NamedKind | None, name: str
) -> str | None:
    # links are relative, and folders of results may be links to other disks
    target = os.path.normpath(link.parent / link.readlink())
    found = re.fullmatch(pattern, target)
    if not found:
        return f"{link} points to {target}, which is no place of its results"
    if kind and found["id"] not in identities_of(layout, kind, name):
        return f'{link} points to {target}, which has never been called "{name}"'
    return None if link.exists() else f"{link} points to {target}, which does not exist"


def _check_history(findings: Findings, path: Path) -> int:
    """Verify each line of the history of names, and return the number of lines."""
    about = findings.but(
        "delete the line, and the next `snakemake` records what the config names again"
    )
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return 0
    except OSError as error:
        about.add(f"{path} cannot be read ({error.strerror})")
        return 0
    for number, line in enumerate(lines, 1):
        if not (_is_line(line) or not line.strip()):
            about.add(f"{path}, line {number} is cut off or was changed")
    return len(lines)


def _is_line(line: bytes) -> bool:
    """Return whether a line is unchanged since it was written."""
    try:
        record: Mapping[str, Any] = json.loads(line)
        rest = {key: record[key] for key in record if key != _SEAL}
        is_whole = rest.keys() - {"since"} == _REQUIRED and rest["kind"] in ("run", "dataset")
        is_whole = (
            is_whole and bool(IDENTITY.fullmatch(rest["id"])) and isinstance(rest["name"], str)
        )
        return is_whole and line.endswith(b"\n") and record.get(_SEAL) == digest(rest)
    except (ValueError, TypeError, AttributeError, KeyError):
        return False


def _check_named(findings: Findings, layout: ResultsLayout) -> None:
    """Add a problem for each result that is not in the history."""
    kinds: tuple[NamedKind, ...] = ("dataset", "run")
    for kind in kinds:
        had = names_that_have_been(layout, kind)
        for folder in sorted(layout.folder_of(kind).glob("*")):
            is_result = IDENTITY.fullmatch(folder.name) and layout.exists(kind, folder.name)
            if is_result and folder.name not in had:
                findings.but(
                    "start `snakemake` once with the config that names it, or delete the folder"
                ).add(f"{layout.names_file} has no name of {folder}")
