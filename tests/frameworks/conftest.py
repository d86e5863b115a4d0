"""Two machines of namespaces, clusters, and what each framework left on one machine."""

from collections.abc import Callable

import pytest

from tests.slurm.conftest import slurm, start_slurm  # noqa: F401  # fixtures
from tests.support.frameworks import Project
from tests.support.lan import lan, switched_on  # noqa: F401  # fixtures

# Each run of the one project that a framework has on this machine.
MODELS = {"whole": "script: train.py", "broken": "script: broken.py", "lightning": "mlp"}


@pytest.fixture(scope="session")
def on_one_machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Project]:
    """Return a framework's project, run by Snakemake once for all tests."""
    done: dict[str, Project] = {}

    def run(framework: str) -> Project:
        if framework not in done:
            project = Project.of(framework, tmp_path_factory.mktemp(framework) / framework)
            project.configure(MODELS)
            project.run()
            done[framework] = project
        return done[framework]

    return run


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Callable[[str, str, str], None]:
    """Record what a test runs, for the table of docs/frameworks.md."""

    def record(framework: str, place: str, launcher: str) -> None:
        for name, value in (("framework", framework), ("place", place), ("launcher", launcher)):
            record_property(name, value)

    return record
