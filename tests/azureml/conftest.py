"""The emulated service for the tests; where something is missing they say what to install."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import pytest

from tests.azureml.azurite import INSTALL as AZURITE_INSTALL
from tests.azureml.azurite import find_azurite
from tests.support.machines import MachineError, require_programs
from tests.support.needs import require
from tests.support.tracked_training import serve, training  # noqa: F401  # fixtures

SDKS = ("azure.ai.ml", "azureml.core", "azureml.mlflow", "azure.storage.blob", "mlflow")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it lies in
        return False


@pytest.fixture(scope="session")
def azure_sdks() -> None:
    """Require the SDKs."""
    missing = [module for module in SDKS if not _is_there(module)]
    require(not missing, f"{', '.join(missing)} not found; run: make env-azureml")


@pytest.fixture(scope="session")
def azurite_installed() -> None:
    """Require Azurite."""
    require(find_azurite(), f"azurite-blob not found; run: {AZURITE_INSTALL}")


@pytest.fixture(scope="module")
def start_azureml(
    azure_sdks: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Any]]:
    """Start emulators that end with the module's tests; options are those of AzureMLEmulator."""
    # Imported here, so that the rest of tests/azureml runs without what the emulator needs.
    from tests.azureml.emulator.service import INSTALL, PROGRAMS, AzureMLEmulator

    try:
        require_programs(PROGRAMS, install=INSTALL)
    except MachineError as error:
        require(False, str(error))
    with ExitStack() as services:

        def start(**options: Any) -> AzureMLEmulator:
            hidden = [tmp_path_factory.getbasetemp(), *options.pop("hidden", [])]
            service = AzureMLEmulator(tmp_path_factory.mktemp("azureml"), hidden=hidden, **options)
            try:
                return services.enter_context(service)
            except MachineError as error:
                pytest.fail(str(error), pytrace=False)

        yield start


@pytest.fixture(scope="module")
def azureml(start_azureml: Callable[..., Any], azurite_installed: None) -> Any:
    """Four nodes for each compute, and blob storage."""
    return start_azureml(nodes=4, azurite=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of milliseconds in the place of seconds."""
    from snakemake_executor_plugin_azureml import service, service_retries

    monkeypatch.setattr(service_retries, "_FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(service, "_CANCELLING_POLL_S", 0.001)
