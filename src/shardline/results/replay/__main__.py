"""The program of a replay, `python -m shardline.results.replay REQUEST`: request and answer are JSON."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import convert, structs

from shardline.config.layout import ResultsLayout
from shardline.config.resolved import PythonObject
from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.one_lightning import keep
from shardline.environments.installed import find_differences, requirements_of
from shardline.records.base import encode
from shardline.results.sealed_run import SealedRun


def main() -> int:
    """Evaluate the model, and print the evaluation or the error."""
    request = json.loads(sys.argv[1])
    sys.path.insert(0, str(Path.cwd()))  # the user's modules
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps prints of the model out of the answer
    try:
        result, code = _replay(request), 0
    except ShardlineError as error:
        result, code = {"error": str(error)}, error.exit_code
    with answer:
        json.dump(result, answer)
    return code


def _replay(request: Mapping[str, Any]) -> dict[str, Any]:
    layout = ResultsLayout(root=Path(request["project"]), named_store=Path(request["store"]))
    evaluation = Path(request["evaluation"])
    recorded = SealedRun(id=request["run"], layout=layout, evaluation_file=evaluation)
    assert recorded.evaluation is not None
    spec, identity = recorded.run_spec, recorded.evaluation.identity
    environment = identity["environment"]
    locked = spec.environment.get("requirements", [])
    differences = find_differences(
        environment["python"], requirements_of(environment["packages"], locked)
    )
    if differences and not request["force"]:
        raise ConfigError(
            f"{recorded.id} was evaluated in another environment: {'; '.join(differences)}; install the lock of "
            "the evaluation, start ranks in an environment made from that lock (runtime.environment: conda or "
            "image), or use the installed packages: --force"
        )
    tokenizers: dict[str, str] = request["tokenizers"]
    keep(request["lightning"])
    # imports torch, so only after the check of the environment
    from shardline.training.evaluate import evaluate

    found = evaluate(
        spec,
        model_file=recorded.model,
        datasets=[
            structs.replace(
                place,
                tokenizer=Path(found) if (found := tokenizers.get(key)) else None,
                python=convert(request["python"].get(key), PythonObject | None),
            )
            for key, place in zip(spec.datasets, recorded.datasets, strict=True)
        ],
        verify="always",  # `first` would read and write markers in the store
        has_test_step="measured_by" in identity,
        has_samples="samples" in identity["versions"],
    )
    assert found is not None  # there is one process
    return {"environment": differences, "evaluation": encode(found)}


if __name__ == "__main__":
    sys.exit(main())
