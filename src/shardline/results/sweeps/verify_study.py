"""Verification of a study: seals, what each proposal knew, and the values of its trials."""

from pathlib import Path

from shardline.config.layout import ResultsLayout
from shardline.config.project import Project
from shardline.config.rungs import AnySlot, Slot, rung_of, slot_of
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import canonical_json
from shardline.core.errors import ShardlineError
from shardline.records.base import encode
from shardline.records.sweeps import Proposal, StudyResult, TrialResult
from shardline.results.findings import Findings, VerifyResult, count
from shardline.results.sweeps.measured import measured
from shardline.results.sweeps.stopping import again
from shardline.results.sweeps.trials import best_of, rows_of, trials_so_far, value_of
from shardline.results.verify_runs import verify_run

_COMPARED = ("settings", "row", "told", "in_flight", "parallel")
_OF_PROMOTION = ("trial", "settings", "row", "chosen", "left")


def verify_study(project: Project, study: str, *, deep: bool = False) -> VerifyResult:
    """Verify the files of a study, and the runs of its trials.

    Args:
        deep: Compute each proposal again, from the results before it.
    """
    folder = project.layout.study(study)
    remedy = f"delete that file and run `snakemake`; or delete {folder}, whose runs stay"
    findings = Findings(VerifyResult(kind="study", id=study), remedy)
    plan = project.sweeps.get(study)
    proposals: dict[AnySlot, Proposal] = {}
    results: dict[AnySlot, list[TrialResult]] = {}
    for slot in _slots(folder):
        if proposal := findings.record(folder / str(slot) / "proposal.json", Proposal):
            proposals[slot] = proposal
        files = sorted((folder / str(slot)).glob("result-*.json"))
        results[slot] = [one for file in files if (one := findings.record(file, TrialResult))]
        for result in results[slot]:
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
    findings.verdict.summary = count(sum(isinstance(one, int) for one in proposals), "trial")
    return findings.verdict


def _slots(folder: Path) -> list[AnySlot]:
    """Return the slots with a folder: trials in order, then promotions by rung."""
    found = [slot_of(one.name) for one in folder.iterdir() if one.is_dir()]
    return sorted(
        found, key=lambda one: (rung_of(one), one.place if isinstance(one, Slot) else one)
    )


def _check_result(
    findings: Findings, layout: ResultsLayout, plan: SweepPlan | None, folder: Path, proposal: Proposal | None,
    result: TrialResult,
) -> None:  # fmt: skip
    place = f"{folder}: trial {result.trial}, training {result.repeat}"
    runs = proposal.runs if proposal else []
    if result.run:
        expected = ([*runs, ""])[min(result.repeat, len(runs))]
        is_one_of_all = bool(plan and plan.median) and result.run in runs
        findings.expect(f"{place}: its run", result.run, result.run if is_one_of_all else expected)
    sealed = layout.run(result.run) if result.run else None
    if plan and sealed and not result.failure and (sealed / "metrics.jsonl").exists():
        try:
            found = measured(result, sealed, plan.settings.objective).value
        except ShardlineError as error:
            findings.add(str(error))
            return
        findings.expect(f"{place}: its value", result.value, found)


def _check_history(
    findings: Findings, plan: SweepPlan, proposals: dict[AnySlot, Proposal],
    results: dict[AnySlot, list[TrialResult]], *, deep: bool,
) -> None:  # fmt: skip
    planned = {*plan.slots}
    known_values: dict[int, set[float | None]] = {}
    for known in results.values():
        if known:  # a lost result is made again
            known_values.setdefault(known[0].trial, set()).add(value_of(known))
    for slot, proposal in proposals.items():
        for earlier, seen in enumerate(proposal.told):
            values = known_values.get(earlier, {seen.value})
            if seen.value not in values:
                findings.add(
                    f"trial {slot}: the value of trial {earlier} is {seen.value}, expected "
                    f"{' or '.join(sorted(map(str, values)))}"
                )
        if not isinstance(slot, Slot):
            _check_rows(findings, plan, proposals, proposal)
        if not (deep or isinstance(slot, Slot)) or slot not in planned:
            continue
        last, new = plan.needs(slot)
        if any(one not in proposals for one in [slot, *new, *([] if last is None else [last])]):
            continue
        found = again(
            plan, slot, None if last is None else proposals[last], [results[one] for one in new],
            proposals.__getitem__,
        )  # fmt: skip
        for key in _OF_PROMOTION if isinstance(slot, Slot) else _COMPARED:
            was, now = encode(proposal)[key], encode(found)[key]
            if canonical_json(was) != canonical_json(now):
                findings.add(f"trial {slot}: {key} computed again is {now}, expected {was}")


def _check_rows(
    findings: Findings, plan: SweepPlan, proposals: dict[AnySlot, Proposal], proposal: Proposal
) -> None:
    """Compare a proposal's settings with its row, and the earlier rows that it contains with earlier proposals."""
    place = f"trial {proposal.trial}"
    findings.expect(
        f"{place}: its settings", proposal.settings, plan.space.settings_of(proposal.row)
    )
    for earlier, row in enumerate(rows_of(proposal)):
        if earlier in proposals and row != proposals[earlier].row:
            findings.add(
                f"{place}: the row of trial {earlier} is {row}, expected {proposals[earlier].row}"
            )


def _check_summary(findings: Findings, plan: SweepPlan, layout: ResultsLayout) -> None:
    path = plan.summary(layout)
    if not path.exists():
        return
    summary = findings.record(path, StudyResult)
    if not summary:
        return
    trials = {one.trial: one for one in summary.trials}
    if not all(file.exists() for slot in plan.slots for file in plan.results(layout, slot)):
        return  # lost results are made again
    try:
        trials_now = trials_so_far(plan, layout)
    except ShardlineError as error:
        findings.add(str(error))
        return
    for trial in trials_now:
        findings.expect(f"{path}: trial {trial.trial}", trials.get(trial.trial), trial)
    best = best_of(summary.trials, plan.settings.objective.mode)
    findings.expect(f"{path}: the best trial", summary.best, best.trial if best else None)
