"""The files that a Slurm of N nodes reads."""

from collections.abc import Mapping, Sequence
from pathlib import Path

LOGIN_ADDRESS = "10.77.0.254"
NETWORK_BITS = 24
MEMORY_MB = 8000  # of each node; Slurm only counts it

# Fast for tests: schedule within two seconds, notice a dead node within about fifteen.
# `config_overrides`: a node may claim more CPUs and memory than this computer has.
# `linuxproc`, `task/none`: no cgroups, which a container seldom may write.
COMMON = {
    "ClusterName": "test",
    "SlurmctldHost": f"login({LOGIN_ADDRESS})",
    "SlurmUser": "root",
    "AuthType": "auth/munge",
    "AuthInfo": "cred_expire=5",  # a requeued job waits until its old credential is void: 120 s
    "CredType": "cred/munge",
    "MailProg": "/bin/true",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "AccountingStorageType": "accounting_storage/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "MpiDefault": "none",
    "SchedulerType": "sched/backfill",
    "SchedulerParameters": "sched_interval=2,bf_interval=2,batch_sched_delay=0,sched_min_interval=0",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU_Memory",
    "SlurmdParameters": "config_overrides",
    "SlurmdTimeout": "10",
    "ReturnToService": "2",
    "EnforcePartLimits": "ALL",
    "KillWait": "5",
    "MinJobAge": "300",
    "JobRequeue": "1",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "GresTypes": "gpu",
}

# With a database: `_start_accounting` makes one that only the login machine's root can reach.
ACCOUNTING = {
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageHost": "login",
}
SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=login
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct_db
"""


def node_names(nodes: int) -> list[str]:
    """Return the names of N nodes."""
    return [f"n{number}" for number in range(1, nodes + 1)]


def node_address(name: str) -> str:
    """Return a node's address on the cluster's network."""
    return f"10.77.0.{int(name.removeprefix('n'))}"


def hosts_file(names: Sequence[str]) -> str:
    """Return /etc/hosts of every machine."""
    known = {"127.0.0.1": "localhost", LOGIN_ADDRESS: "login"}
    known |= {node_address(name): name for name in names}
    return "".join(f"{address} {name}\n" for address, name in known.items())


def slurm_conf(
    names: Sequence[str], *, cpus: int, gpus: int, folder: Path, changes: Mapping[str, str]
) -> str:
    """Return slurm.conf: partition `main`, and `high` whose jobs requeue those of `main`.

    Args:
        names: The nodes.
        cpus: CPUs per node.
        gpus: GPUs per node.
        folder: Where the daemons keep their state.
        changes: slurm.conf keys that differ from `COMMON`.
    """
    keys = {
        **COMMON,
        "StateSaveLocation": str(folder / "state"),
        "SlurmdSpoolDir": str(folder / "spool" / "%n"),
        **changes,
    }
    lines = [f"{key}={value}" for key, value in keys.items()]
    gres = f"Gres=gpu:{gpus} " if gpus else ""
    lines += [
        f"NodeName={name} NodeAddr={node_address(name)} CPUs={cpus} Boards=1 SocketsPerBoard=1 "
        f"CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory={MEMORY_MB} {gres}State=UNKNOWN"
        for name in names
    ]
    lines += [
        "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=10",
        "PartitionName=high Nodes=ALL Default=NO MaxTime=INFINITE State=UP PriorityTier=100"
        " PreemptMode=OFF",
    ]
    return "\n".join(lines) + "\n"


def gres_conf(gpus: int) -> str:
    """Return gres.conf, which names one device file per GPU."""
    return "".join(f"Name=gpu File=/run/gpu{index}\n" for index in range(gpus))
