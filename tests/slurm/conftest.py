"""Clusters for the tests; where Slurm is missing they say what to install, and in CI they fail."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.support.machines import MachineError, require_programs
from tests.support.needs import require
from tests.support.slurm.cluster import INSTALL, PROGRAMS, SlurmCluster


@pytest.fixture(scope="module")
def start_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., SlurmCluster]]:
    """Start clusters that end with the module's tests."""
    try:
        require_programs(PROGRAMS, install=INSTALL)
    except MachineError as error:
        require(False, str(error))
    with ExitStack() as clusters:

        def start(**options: Any) -> SlurmCluster:
            cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), **options)
            try:
                return clusters.enter_context(cluster)
            except MachineError as error:
                pytest.fail(str(error), pytrace=False)

        yield start


@pytest.fixture(scope="module")
def slurm(start_slurm: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Two nodes of two CPUs and two GPUs."""
    return start_slurm(nodes=2)


@pytest.fixture(scope="module")
def slurm4(start_slurm: Callable[..., SlurmCluster]) -> SlurmCluster:
    """Four nodes of two CPUs and two GPUs."""
    return start_slurm(nodes=4)
