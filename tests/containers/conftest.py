"""The engine and the registry of all tests here; what is missing is named, and in CI an error."""

from collections.abc import Iterator

import pytest

from tests.support.container_engine import Engine, Registry


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Podman on a storage of the tests' own."""
    with Engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """An empty registry on this machine."""
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry
