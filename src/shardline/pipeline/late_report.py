"""The report over what is there, where Snakemake made none: `python -m shardline.pipeline.late_report`.

Snakemake leaves out what depends on a job that failed, so the report's rule does not run then, nor after a
crash of Snakemake. This program reads from standard input `{"plan": ...}`, the project as Snakemake's process has
it, or `{"config_file": ...}`. It prints `{"report": ..., "results": ..., "outcomes": ...}`.
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
    """Write the report, and print where it is."""
    asked = json.load(sys.stdin)
    with job("logs/render_report/late.log"):
        plan, file = asked.get("plan"), asked.get("config_file")
        print(json.dumps(render(read_plan(plan) if plan else load_project(config_file=Path(file)))))


def render(project: Project) -> dict[str, Any]:
    """Write the report over the runs that have a result, unless it is there; link it as the present one.

    Where all runs have one, that is the report of Snakemake's own rule.

    Returns:
        `report`: the page; `results`: number of runs that have a result; `outcomes`: number of the others by state.
    """
    outcomes = outcomes_of(project)
    found = project.only_finished(outcomes) if outcomes else project
    if not found.crate.exists():  # which is written last
        write(found, found.report, found.crate, _inputs(found))
    publish(found)
    states = [outcome["state"] for outcome in outcomes.values()]
    return {
        "report": found.layout.name_of(found.report),
        "results": len(found.runs),
        "outcomes": {state: states.count(state) for state in sorted(set(states))},
    }


def _inputs(project: Project) -> dict[str, list[str]]:
    """Return what Snakemake gives to the report's rule."""
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
    """Have the report written after a pipeline run of which jobs failed; its own failure is no other's.

    Nothing is written where the pipeline run was asked for no report.

    Args:
        workflow: Snakemake's.
    """
    try:
        jobs = (job for job in workflow.dag.jobs if job.rule.name.endswith("render_report"))
        if (asked := next(jobs, None)) and not all(run.is_sealed for run in project.runs.values()):
            found = _start(project, _python_of(asked, workflow))
            others = ", ".join(f"{number} {state}" for state, number in found["outcomes"].items())
            page = project.layout.declared.latest_report / project.report.name
            total = len(project.runs)
            logger.info(f"Report over {found['results']} of {total} runs ({others}): {page}")
    except Exception as error:  # the runs' own errors count, and have been shown
        logger.error("the report could not be written: %s", error)


def _start(project: Project, python: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, "-m", __name__],
        # a copy: with the process's own, a thread that changes a variable just then ends the start with EFAULT
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
    """Return the Python that the report's rule would have: of its conda environment, or this one."""
    methods = workflow.deployment_settings.deployment_method
    if "CONDA" in {method.name for method in methods} and asked.conda_env:
        python = Path(asked.conda_env.address) / "bin" / "python"
        return str(python) if python.exists() else sys.executable
    return sys.executable


if __name__ == "__main__":
    main()
