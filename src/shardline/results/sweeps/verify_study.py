"""Verification of a study: seals, what each proposal knew, and the values of its trials."""

from collections.abc import Iterator
from pathlib import Path

from shardline.config.layout import ResultsLayout
from shardline.config.project import Project
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import canonical_json
from shardline.core.errors import ShardlineError
from shardline.records.base import encode
from shardline.records.sweeps import Proposal, StudyResult, TrialResult
from shardline.results.findings import Findings, VerifyResult, count
from shardline.results.sweeps.measured import measured
from shardline.results.sweeps.trials import best_of, next_proposal, read_trial, value_of
from shardline.results.verify_runs import verify_run

_COMPARED = ("settings", "row", "told", "in_flight", "parallel")


def verify_study(project: Project, study: str, *, deep: bool = False) -> VerifyResult:
    """Verify the files of a study, and the runs of its trials.

    Args:
        deep: Compute each proposal again, from the results before it.
    """
    folder = project.layout.study(study)
    remedy = f"delete that file and run `snakemake`; or delete {folder}, whose runs stay"
    findings = Findings(VerifyResult(kind="study", id=study), remedy)
    plan = project.sweeps.get(study)
    proposals: dict[int, Proposal] = {}
    results: dict[int, list[TrialResult]] = {}
    for number in _numbers(folder):
        if proposal := findings.record(folder / str(number) / "proposal.json", Proposal):
            proposals[number] = proposal
        files = sorted((folder / str(number)).glob("result-*.json"))
        results[number] = [one for file in files if (one := findings.record(file, TrialResult))]
        for result in results[number]:
            _check_result(findings, project.layout, plan, folder, proposal, result)
    for file in sorted(folder.glob("study-*.json")):
        findings.record(file, StudyResult)
    for run in sorted(
        {one.run for found in results.values() for one in found if one.value is not None}
    ):
        if project.layout.exists(
            "run", run
        ):  # a removed run is trained again only for another study
            findings.verdict.problems += verify_run(project.layout, run, deep=deep).problems
    if not findings.verdict.problems and plan:
        _check_history(findings, plan, proposals, results, deep=deep)
        _check_summary(findings, plan, project.layout)
    findings.verdict.summary = count(len(proposals), "trial")
    return findings.verdict


def _numbers(folder: Path) -> Iterator[int]:
    return iter(sorted(int(one.name) for one in folder.iterdir() if one.name.isdecimal()))


def _check_result(
    findings: Findings, layout: ResultsLayout, plan: SweepPlan | None, folder: Path, proposal: Proposal | None,
    result: TrialResult,
) -> None:  # fmt: skip
    place = f"{folder}: trial {result.trial}, training {result.repeat}"
    runs = proposal.runs if proposal else []
    if result.run:
        findings.expect(
            f"{place}: its run", result.run, ([*runs, ""])[min(result.repeat, len(runs))]
        )
    sealed = layout.run(result.run) if result.run else None
    if plan and sealed and not result.failure and (sealed / "metrics.jsonl").exists():
        try:
            found = measured(result, sealed, plan.settings.objective).value
        except ShardlineError as error:
            findings.add(str(error))
            return
        findings.expect(f"{place}: its value", result.value, found)


def _check_history(
    findings: Findings, plan: SweepPlan, proposals: dict[int, Proposal], results: dict[int, list[TrialResult]],
    *, deep: bool,
) -> None:  # fmt: skip
    for number, proposal in proposals.items():
        for earlier, seen in enumerate(proposal.told):
            known = results.get(earlier)
            if known:  # a lost result is made again
                findings.expect(
                    f"trial {number}: the value of trial {earlier}", seen.value, value_of(known)
                )
        before = proposals.get(number - 1)
        if not deep or number >= plan.trials or (number and not before):
            continue
        known_now = range(plan.visible(number - 1), plan.visible(number))
        again = next_proposal(plan, number, before, [results[one] for one in known_now])
        for key in _COMPARED:
            was, now = encode(proposal)[key], encode(again)[key]
            if canonical_json(was) != canonical_json(now):
                findings.add(f"trial {number}: {key} computed again is {now}, expected {was}")


def _check_summary(findings: Findings, plan: SweepPlan, layout: ResultsLayout) -> None:
    path = plan.summary(layout)
    if not path.exists():
        return
    summary = findings.record(path, StudyResult)
    if not summary:
        return
    slots = [number for number in range(plan.trials) if plan.proposal(layout, number).exists()]
    for number in slots:
        if all(file.exists() for file in plan.results(layout, number)):
            trial = read_trial(plan, layout, number)
            findings.expect(f"{path}: trial {number}", summary.trials[number], trial)
    best = best_of(summary.trials, plan.settings.objective.mode)
    findings.expect(f"{path}: the best trial", summary.best, best.trial if best else None)
