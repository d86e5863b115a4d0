"""The tests that Snakemake has for all executor plugins, on the emulated service."""

import sys

import pytest

from tests.azureml.emulator import AzureMLEmulator
from tests.azureml.pipeline import IMAGE
from tests.support.workspace import REPOSITORY

TESTS = REPOSITORY / "plugins/snakemake-executor-plugin-azureml/tests/test_workflows.py"


@pytest.mark.rotating
def test_workflows_of_snakemakes_own_tests(azureml: AzureMLEmulator) -> None:
    azureml.container("bases")
    environment = {
        "SNAKEMAKE_AZUREML_SUBSCRIPTION": azureml.subscription,
        "SNAKEMAKE_AZUREML_RESOURCE_GROUP": azureml.resource_group,
        "SNAKEMAKE_AZUREML_WORKSPACE": azureml.workspace,
        "SNAKEMAKE_AZUREML_COMPUTE": azureml.compute,
        "SNAKEMAKE_AZUREML_IMAGE": IMAGE,
        "SNAKEMAKE_AZUREML_TEST_CONTAINER": "bases",
    }
    done = azureml.login.run(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "-c", "/dev/null", str(TESTS),
        env={**azureml.environment, **environment}, cwd=azureml.folder, timeout=300,
    )  # fmt: skip
    assert "2 passed" in done.stdout
