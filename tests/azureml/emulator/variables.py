"""The environment variables that the service sets for each process of a job.

tests/data/environments holds recorded ones; a test holds these functions to them.
"""

from collections.abc import Sequence
from typing import Literal

from tests.azureml.emulator.constants import (
    API,
    RESOURCE_GROUP,
    SUBSCRIPTION,
    WORKSPACE,
    WORKSPACE_ID,
    experiment_id,
)
from tests.azureml.emulator.credential import make_token
from tests.azureml.emulator.jobs import JobSpec

MASTER_PORT = 6105  # of PyTorch jobs; documented
BATCH_PORT = 6000

TOKEN_S = 90.0  # so near its end that its first user renews it: azureml-mlflow does so below 95 s

# Where an MPI job on several nodes finds its first node. All three are seen in public logs.
MpiAddress = Literal["batch", "master-ip", "localhost"]


def place_variables(
    spec: JobSpec,
    *,
    node: int,
    local_rank: int,
    addresses: Sequence[str],
    mpi_address: MpiAddress = "batch",
) -> dict[str, str]:
    """Return the variables that tell a process its place.

    Args:
        spec: The job.
        node: Number of the process's node.
        local_rank: Number of the process on its node.
        addresses: Address of every node, in order.
        mpi_address: How an MPI job on several nodes learns its first node's address.
    """
    if spec.distribution == "Mpi":
        place = _mpi(spec, node, local_rank, addresses, mpi_address)
    elif spec.distribution == "PyTorch":
        place = _pytorch(spec, node, local_rank, addresses)
    else:
        place = {"AZUREML_NODE_COUNT": str(spec.nodes), "AZUREML_CR_NODE_RANK": str(node)}
    return {"AZUREML_RUN_ID": spec.name, **place}


def _mpi(
    spec: JobSpec,
    node: int,
    local_rank: int,
    addresses: Sequence[str],
    mpi_address: MpiAddress,
) -> dict[str, str]:
    per_node = spec.processes_per_node
    ranks = {
        "OMPI_COMM_WORLD_RANK": str(node * per_node + local_rank),
        "OMPI_COMM_WORLD_SIZE": str(spec.nodes * per_node),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(local_rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(per_node),
    }
    localhost = {"AZ_BATCHAI_MPI_MASTER_NODE": "localhost"}
    if spec.nodes == 1:
        return {"AZUREML_NODE_COUNT": "1", **localhost, **ranks}
    if mpi_address == "localhost":
        return {**localhost, **ranks}
    if mpi_address == "master-ip":
        return {**localhost, "MASTER_IP": addresses[0], **ranks}
    return {
        "AZUREML_NODE_COUNT": str(spec.nodes),
        "AZ_BATCH_MASTER_NODE": f"{addresses[0]}:{BATCH_PORT}",
        "AZ_BATCHAI_MPI_MASTER_NODE": addresses[0],
        "AZ_BATCH_NODE_LIST": ";".join(addresses),
        **ranks,
        # Despite its name: the rank among the processes of the node.
        "OMPI_COMM_WORLD_NODE_RANK": str(local_rank),
    }


def _pytorch(spec: JobSpec, node: int, local_rank: int, addresses: Sequence[str]) -> dict[str, str]:
    per_node = spec.processes_per_node
    service = {"AZUREML_NODE_COUNT": str(spec.nodes), "AZUREML_CR_NODE_RANK": str(node)}
    return {
        **(service if spec.sdk == "v2" else {}),
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": str(MASTER_PORT),
        "WORLD_SIZE": str(spec.nodes * per_node),
        "NODE_RANK": str(node),
        "RANK": str(node * per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
    }


def workspace_variables(spec: JobSpec) -> dict[str, str]:
    """Return the variables that tell a job where it belongs."""
    return {
        "AZUREML_ARM_SUBSCRIPTION": SUBSCRIPTION,
        "AZUREML_ARM_RESOURCEGROUP": RESOURCE_GROUP,
        "AZUREML_ARM_WORKSPACE_NAME": WORKSPACE,
        "AZUREML_ARM_PROJECT_NAME": spec.experiment,
        "AZUREML_WORKSPACE_SCOPE": WORKSPACE_ID,
        "AZUREML_EXPERIMENT_SCOPE": f"{WORKSPACE_ID}/experiments/{spec.experiment}",
        "AZUREML_SERVICE_ENDPOINT": API,
        "AZUREML_DISCOVERY_SERVICE_ENDPOINT": f"{API}/discovery",
        "MLFLOW_TRACKING_URI": f"azureml://{API.removeprefix('https://')}/mlflow/v1.0{WORKSPACE_ID}",
        "MLFLOW_RUN_ID": spec.name,
        "MLFLOW_EXPERIMENT_NAME": spec.experiment,
        "MLFLOW_EXPERIMENT_ID": experiment_id(spec.experiment),
        "MLFLOW_TRACKING_TOKEN": make_token(TOKEN_S, run=spec.name).token,
    }
