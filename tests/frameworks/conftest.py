"""Two machines of namespaces, clusters, and what each framework left on one machine."""

from collections.abc import Callable

import pytest

from tests.slurm.conftest import slurm, start_slurm  # noqa: F401  # fixtures
from tests.support.frameworks import WHOLE, Project
from tests.support.lan import lan, switched_on  # noqa: F401  # fixtures

# Each run of the one project that a framework has on this machine.
MODELS = {"whole": "script: train.py", "broken": "script: broken.py", "lightning": "mlp"}


@pytest.fixture(scope="session")
def on_one_machine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Project]:
    """Return a framework's project, run by Snakemake once for all tests."""

    def run(framework: str) -> Project:
        if framework not in WHOLE:
            project = Project.of(framework, tmp_path_factory.mktemp(framework) / framework)
            project.configure(MODELS)
            project.run()
            WHOLE[framework] = project
        return WHOLE[framework]

    return run
