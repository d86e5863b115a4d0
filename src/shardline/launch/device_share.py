"""A job's share of this machine's devices, beside the other jobs of the same user."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from shardline.config.settings.run_settings import RunSettings
from shardline.core.errors import LaunchError
from shardline.core.machine import num_cpus, num_gpus
from shardline.launch.gpus import VISIBLE, list_gpus, usable_gpus
from shardline.launch.locks import DESCRIPTORS, FOLDER, Locked, locked, others

# Set by the process that starts all jobs on this machine: cores for each run, if as many run as fit.
CORES_PER_RUN = "SHARDLINE_CORES_PER_RUN"


@dataclass(frozen=True, kw_only=True)
class Share:
    """The devices of a job's ranks.

    Attributes:
        env: the job's environment; CUDA_VISIBLE_DEVICES names its GPUs.
        cores: numbers of the cores to run on; empty for all cores.
        descriptors: descriptors of the locks, for the ranks.
        kind: kind of the devices that ranks compute on, `gpu` or `core`; "" if nothing is locked.
        units: the locked devices of this kind.
        beside: descriptions of the jobs that computed beside this job when it began.
    """

    env: Mapping[str, str]
    cores: frozenset[int] = frozenset()
    descriptors: tuple[int, ...] = ()
    kind: str = ""
    units: tuple[str, ...] = ()
    beside: tuple[str, ...] = field(default=())

    def company(self) -> tuple[str, ...]:
        """Return descriptions of the jobs that have computed beside this job, at its beginning or now."""
        now = others(self.kind, self.units) if self.kind else ()
        return tuple(dict.fromkeys((*self.beside, *now)))


@contextmanager
def device_share(
    settings: RunSettings, *, title: str, threads: int, env: Mapping[str, str],
    oversubscribe: bool = False, alone: bool = False,
) -> Iterator[Share]:  # fmt: skip
    """Lock the devices that a run's ranks need on this machine, and yield them.

    Jobs of a scheduler, which has its own bookkeeping, lock nothing.

    Args:
        title: title of the run.
        threads: CPU threads of each rank.
        env: environment of this job.
        oversubscribe: whether CPU ranks may share cores with other jobs.
        alone: whether to lock all devices of this machine.

    Raises:
        LaunchError: this machine has fewer devices, or `CUDA_VISIBLE_DEVICES` names unknown ones.
    """
    if CORES_PER_RUN not in env or env.get(FOLDER) == "off":
        yield Share(env=env)
        return
    has_gpus = settings.accelerator != "cpu" and num_gpus() > 0
    # the machines of `runtime.hosts` are not counted, so such a run is alone on this one
    takes_all = alone or settings.nodes > 1
    with ExitStack() as stack:
        gpus = Locked()
        if has_gpus:
            usable = usable_gpus(list_gpus(), env)
            wanted = min(settings.devices, len(usable)) if settings.elastic else settings.devices
            count = max(wanted, len(usable)) if takes_all else wanted
            gpus = stack.enter_context(locked("gpu", usable, count, title=title))
            if settings.nodes == 1:
                env = {**env, VISIBLE: ",".join(gpus.units[:wanted])}
        cores = _cores()
        per_run = min(_cores_per_run(env), len(cores))
        need = min(settings.devices * threads, len(cores))
        order = preferred(cores, need=need, per_run=per_run)
        taken, names = Locked(), tuple(map(str, order))
        if has_gpus and not takes_all:  # cores matter less there: nothing waits for them
            taken = stack.enter_context(locked("core", names, need, title=title, waits=False))
        elif not has_gpus and (alone or not oversubscribe):
            count = len(cores) if takes_all else need
            taken = stack.enter_context(locked("core", names, count, title=title))
        pinned = around([int(name) for name in taken.units], cores, per_run=per_run)
        main = gpus if has_gpus else taken
        descriptors = (*gpus.descriptors, *taken.descriptors)
        yield Share(
            env={**env, DESCRIPTORS: ",".join(map(str, descriptors))},
            cores=pinned if len(pinned) < len(cores) else frozenset(),
            descriptors=descriptors,
            kind="" if not main.units else "gpu" if has_gpus else "core",
            units=main.units,
            beside=main.beside,
        )


def _cores() -> list[int]:
    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else [*range(num_cpus())]
    )


def _cores_per_run(env: Mapping[str, str]) -> int:
    value = env[CORES_PER_RUN]
    if not value.isdecimal() or not int(value):
        raise LaunchError(
            f"{CORES_PER_RUN}={value} is not a number of cores from 1 on; unset it, Shardline sets it by itself"
        )
    return int(value)


def preferred(cores: Sequence[int], *, need: int, per_run: int) -> list[int]:
    """Return cores in the order in which jobs lock them: first the beginning of each block of `per_run` cores.

    Args:
        need: number of cores that a job locks.
        per_run: cores for each run, if as many run as fit.
    """
    places = range(len(cores))
    return [cores[i] for i in sorted(places, key=lambda i: (i % per_run // max(1, need), i))]


def around(taken: Sequence[int], cores: Sequence[int], *, per_run: int) -> frozenset[int]:
    """Return locked cores and the rest of their blocks, in which a run reads data and saves."""
    blocks = {cores.index(core) // per_run for core in taken}
    return frozenset(core for i, core in enumerate(cores) if i // per_run in blocks)
