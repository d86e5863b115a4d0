"""An emulator of the Azure ML service, for tests and by hand.

    python -m tests.azureml.emulator -- CMD...

The unmodified SDKs, azure-ai-ml (v2) and azureml-core (v1), talk to it over TLS. Each node of a
job is a machine of its own, as in tests/support/machines.py.
"""

from tests.azureml.emulator.service import AzureMLEmulator

__all__ = ["AzureMLEmulator"]
