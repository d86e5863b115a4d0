"""The program of a replay, `python -m shardline.results.replay --help`; it prints JSON."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from shardline.config.layout import ResultsLayout
from shardline.core.errors import ConfigError, ShardlineError
from shardline.environments.installed import find_differences, requirements_of
from shardline.results.recorded import Recorded


def main() -> int:
    """Evaluate, and print what came out, or the one sentence of the error."""
    arguments = _parse()
    sys.path.insert(0, str(Path.cwd()))  # the user's own modules
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a model prints is not the answer
    try:
        result, code = _replay(arguments), 0
    except ShardlineError as error:
        result, code = {"error": str(error)}, error.exit_code
    with answer:
        json.dump(result, answer)
    return code


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m shardline.results.replay", description=__doc__)
    parser.add_argument("run", help="id of the run")
    parser.add_argument("evaluation", type=Path, help="the recorded evaluation")
    parser.add_argument("--project", type=Path, required=True, help="the project's folder")
    parser.add_argument("--store", type=Path, required=True, help="root of bulky data")
    parser.add_argument("--anyway", action="store_true", help="whatever is installed here")
    return parser.parse_args()


def _replay(arguments: argparse.Namespace) -> dict[str, Any]:
    layout = ResultsLayout(root=arguments.project, named_store=arguments.store)
    recorded = Recorded(id=arguments.run, layout=layout, evaluation_file=arguments.evaluation)
    spec, environment = recorded.run_spec, recorded.evaluation["identity"]["environment"]
    locked = spec.environment.get("requirements", [])
    differences = find_differences(
        environment["python"], requirements_of(environment["packages"], locked)
    )
    if differences and not arguments.anyway:
        raise ConfigError(
            f"{recorded.id} was evaluated in another environment: {'; '.join(differences)}; install the lock of "
            "then, let the profile start ranks in an environment made from it (runtime.environment: conda or "
            "image), or replay with what is installed here: --anyway"
        )
    # torch is imported only once the environment is good
    from shardline.training.evaluate import evaluate

    found = evaluate(
        spec,
        model_file=recorded.model,
        manifest=recorded.manifest,
        shards=recorded.shards,
        verify="always",  # `first` would trust, and leave, marks in the store
    )
    return {"environment": differences, "evaluation": found}


if __name__ == "__main__":
    sys.exit(main())
