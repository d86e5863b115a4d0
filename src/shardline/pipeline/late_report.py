"""Write the report over the finished runs after a failure: `python -m shardline.pipeline.late_report`.

Snakemake skips the report's rule if a run failed, and a crashed Snakemake runs no rule. This program reads JSON from
standard input: `{"plan": ...}`, the project of Snakemake's process, or `{"config_file": ...}`. It prints
`{"report": ..., "results": ..., "outcomes": ...}`.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from shardline.config.job_plan import read_plan, write_plan
from shardline.config.load import load_project
from shardline.config.project import Project
from shardline.core.errors import ShardlineError
from shardline.pipeline.job_frame import job
from shardline.pipeline.links import publish
from shardline.pipeline.report_job import write
from shardline.results.outcomes import outcomes_of

_FILES = {
    "runs": "run.json", "identities": "identity.json", "metrics": "metrics.jsonl", "provenances": "provenance.json",
}  # fmt: skip


def main() -> None:
    """Write the report, and print its path."""
    asked = json.load(sys.stdin)
    with job("logs/render_report/late.log"):
        plan, file = asked.get("plan"), asked.get("config_file")
        print(json.dumps(render(read_plan(plan) if plan else load_project(config_file=Path(file)))))


def render(project: Project) -> dict[str, str | int | dict[str, int]]:
    """Write the report over the runs with a result, unless it exists, and link it as the latest report.

    If all runs have a result, this is the same report as that of Snakemake's own rule.

    Returns:
        `report`: the page; `results`: number of runs with a result; `outcomes`: number of other runs by state.
    """
    outcomes = outcomes_of(project)
    found = project.only_finished(outcomes) if outcomes or project.sweeps else project
    if not found.crate.exists():  # the crate is written last
        write(found, found.report, found.crate, _inputs(found))
    publish(found)
    states = [outcome["state"] for outcome in outcomes.values()]
    return {
        "report": found.layout.name_of(found.report),
        "results": len(found.runs),
        "outcomes": {state: states.count(state) for state in sorted(set(states))},
    }


def _inputs(project: Project) -> dict[str, list[str]]:
    """Return the inputs of the report's rule."""
    layout, runs = project.layout, list(project.runs.values())
    files = {
        kind: [layout.name_of(run.folder / name) for run in runs] for kind, name in _FILES.items()
    }
    return {
        **files,
        "evaluations": [layout.name_of(run.evaluation) for run in runs],
        "manifests": [layout.name_of(path) for path in project.manifests_of_report()],
        "datasets": [layout.name_of(path) for path in project.provenances_of_report()],
    }


def report_on_failure(project: Project, workflow: Any, logger: logging.Logger) -> None:
    """Write the report after a pipeline run with failed jobs, if a report was requested.

    An error here is logged, and does not change the result of the pipeline run.

    Args:
        workflow: Snakemake's workflow.
    """
    try:
        jobs = (job for job in workflow.dag.jobs if job.rule.name.endswith("render_report"))
        if (asked := next(jobs, None)) and not _is_finished(project):
            found = _start(project, _python_of(asked, workflow))
            others = ", ".join(f"{number} {state}" for state, number in found["outcomes"].items())
            page = project.layout.declared.latest_report / project.report.name
            total = len(project.runs)
            logger.info(f"Report over {found['results']} of {total} runs ({others}): {page}")
    except Exception as error:  # the runs' own errors matter, and have been printed
        logger.error("the report could not be written: %s", error)


def _is_finished(project: Project) -> bool:
    studies = (plan.summary(project.layout) for plan in project.sweeps.values())
    return all(run.is_sealed for run in project.runs.values()) and all(
        path.exists() for path in studies
    )


def _start(project: Project, python: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-m", __name__],
        # a copy: if a thread changes os.environ during the start, the start fails with EFAULT
        env=dict(os.environ),
        input=json.dumps({"plan": write_plan(project)}),
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise ShardlineError(done.stderr.strip())
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _python_of(asked: Any, workflow: Any) -> str:
    """Return the Python of the report's rule: of its conda environment, or else this one."""
    methods = workflow.deployment_settings.deployment_method
    if "CONDA" in {method.name for method in methods} and asked.conda_env:
        python = Path(asked.conda_env.address) / "bin" / "python"
        return str(python) if python.exists() else sys.executable
    return sys.executable


if __name__ == "__main__":
    main()
