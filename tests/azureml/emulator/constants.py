"""The one workspace that the emulator knows, and the names under which it is reached."""

import uuid

SUBSCRIPTION = "00000000-0000-0000-0000-000000000001"
TENANT = "00000000-0000-0000-0000-0000000000aa"
RESOURCE_GROUP = "research"
WORKSPACE = "experiments"
WORKSPACE_GUID = "00000000-0000-0000-0000-0000000000bb"
LOCATION = "westeurope"
COMPUTE = "cpu-cluster"
LOW_PRIORITY_COMPUTE = "low-cluster"
SERVERLESS = "serverless"
COMPUTES = {COMPUTE: "Dedicated", LOW_PRIORITY_COMPUTE: "LowPriority", SERVERLESS: "Dedicated"}
DATASTORE = "workspaceblobstore"
ARTIFACT_DATASTORE = "workspaceartifactstore"
ACCOUNT = "emulatedaccount"

WORKSPACE_ID = (
    f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{RESOURCE_GROUP}"
    f"/providers/Microsoft.MachineLearningServices/workspaces/{WORKSPACE}"
)
API_HOST = f"{LOCATION}.api.azureml.ms"
BLOB_HOST = f"{ACCOUNT}.blob.core.windows.net"
API = f"https://{API_HOST}"
BLOBS = f"https://{BLOB_HOST}"
ARTIFACTS = "azureml"  # the container that holds logs and outputs of jobs
SIGNATURE = "sv=2023-01-03&sr=c&sig=emulated"  # a shared access signature that is not checked

# One certificate for all; a `*.` covers a single label.
CERTIFICATE_HOSTS = [
    "localhost",
    "*.azure.com",
    "*.microsoftonline.com",
    "*.api.azureml.ms",
    "*.blob.core.windows.net",
]


def experiment_id(name: str) -> str:
    """Return an experiment's id."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{WORKSPACE_ID}/experiments/{name}"))


def is_served(host: str) -> bool:
    """Return whether the emulator answers in the name of a host."""
    return any(host.endswith(name.lstrip("*")) for name in CERTIFICATE_HOSTS)


def is_blob_host(host: str) -> bool:
    """Return whether a host name is a storage account's."""
    return host.partition(":")[0].endswith(".blob.core.windows.net")
