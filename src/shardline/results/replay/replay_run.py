"""Replay of a run: checks, then an evaluation in the recorded environment."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from msgspec import to_builtins

from shardline.config.project import Project
from shardline.core.errors import ConfigError, DataError, LaunchError, ShardlineError
from shardline.core.rank_environment import rank_variables
from shardline.core.variables import cleaned
from shardline.environments.python import python_of_ranks
from shardline.records.base import encode
from shardline.results.replay.replayed_numbers import DIFFERENT, Number, compare
from shardline.results.sealed_run import SealedRun, check_repeatable

_ERRORS = {error.exit_code: error for error in (ConfigError, DataError, LaunchError)}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Result of a replay.

    Attributes:
        run: Id of the run.
        title: Name and id of the run.
        evaluation: File of the recorded evaluation.
        action: Id of the action that recorded the numbers.
        tolerance: Allowed relative difference.
        code: Differences between the present code and that of the evaluation; empty without --force.
        environment: Differences between the installed packages and the recorded ones; empty without --force.
        numbers: Comparison of each number.
    """

    run: str
    title: str
    evaluation: str
    action: str
    tolerance: float
    code: list[str]
    environment: list[str]
    numbers: list[Number]

    @property
    def is_equal(self) -> bool:
        """Whether every number is equal within the tolerance."""
        return all(number.verdict != DIFFERENT for number in self.numbers)


def replay(project: Project, recorded: SealedRun, *, tolerance: float, force: bool) -> Replay:
    """Evaluate a sealed model again, and compare the numbers; writes nothing.

    Verifies the sealed files against their checksums, and each shard while reading it.

    Args:
        tolerance: Allowed relative difference; 0 means exactly equal.
        force: Use the code and packages of this process, even if they differ.

    Raises:
        ConfigError: The run cannot be replayed, or code or packages differ from the recorded ones.
        DataError: A sealed file or a shard is damaged or missing.
    """
    changes = check_repeatable(project, recorded, "replayed", force=force)
    answer = _evaluate_again(project, recorded, force=force)
    assert recorded.evaluation_file is not None
    assert recorded.evaluation is not None
    evaluation = recorded.evaluation_file.stem
    return Replay(
        run=recorded.id,
        title=recorded.title,
        evaluation=recorded.layout.name_of(recorded.evaluation_file),
        action=f"evaluate/{recorded.id}/{evaluation}",
        tolerance=tolerance,
        code=changes,
        environment=answer["environment"],
        numbers=compare(encode(recorded.evaluation), answer["evaluation"], tolerance),
    )


def _evaluate_again(project: Project, recorded: SealedRun, *, force: bool) -> dict[str, Any]:
    """Run the program of a replay with the ranks' Python, and return its answer."""
    python = (sys.executable,) if force else python_of_ranks(project, gpus=False)
    request = {
        "run": recorded.id, "evaluation": str(recorded.evaluation_file), "force": force,
        "project": str(project.workdir), "store": str(project.store),
        "tokenizers": {key: str(of.tokenizer) for key, of in project.datasets.items() if of.tokenizer},
        "lightning": project.documents.lightning_of({"model": recorded.spec.model_class}),
        "python": {key: to_builtins(of.python) for key, of in project.datasets.items() if of.python},
    }  # fmt: skip
    command = [*python, "-m", "shardline.results.replay", json.dumps(request)]
    # the threads of an evaluation job: their number changes the last bits of sums
    variables = rank_variables(1, {}, "")
    done = subprocess.run(
        command,
        env={**cleaned(os.environ), **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise ShardlineError(
            f"the replay of {recorded.title} ended with code {done.returncode} and without a result; the reason "
            "is printed above"
        ) from None
    if "error" in answer:
        raise _ERRORS.get(done.returncode, ShardlineError)(answer["error"])
    return answer
