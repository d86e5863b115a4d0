"""How many runs fit on this machine at a time, when Snakemake starts all jobs here.

Snakemake counts cores, and the resource `gpus`. Which cores and GPUs a job uses is decided by the job itself,
with locks (`launch/device_share.py`).
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.core.machine import num_gpus
from shardline.launch.device_share import CORES_PER_RUN
from shardline.launch.gpus import list_gpus, usable_gpus
from shardline.launch.request import threads_of


@dataclass(frozen=True, kw_only=True)
class Need:
    """What Snakemake counts of a run's training: cores and GPUs of this machine."""

    cores: int
    gpus: int = 0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What Snakemake may use of this machine.

    Attributes:
        cores: number of cores.
        gpus: number of GPUs or MIG instances.
    """

    cores: int
    gpus: int = 0

    def need(self, settings: RunSettings, runtime: Runtime, *, is_alone: bool = False) -> Need:
        """Return what a run's training needs, at most what this machine has.

        Args:
            is_alone: whether other jobs must not run beside it, because it measures performance.
        """
        cores = threads_of(settings, runtime, cores=self.cores, is_alone=is_alone)
        gpus = 0
        if self.gpus and settings.accelerator != "cpu":
            takes_all = is_alone or settings.nodes > 1
            gpus = self.gpus if takes_all else min(settings.devices, self.gpus)
        return Need(cores=min(cores, self.cores), gpus=gpus)

    def fitting(self, needs: Iterable[Need]) -> int:
        """Return how many of these runs fit at a time, the smallest first; at least 1."""
        cores, gpus, number = self.cores, self.gpus, 0
        for need in sorted(needs, key=lambda one: (one.gpus, one.cores)):
            cores, gpus = cores - need.cores, gpus - need.gpus
            if cores < 0 or gpus < 0:
                break
            number += 1
        return max(1, number)

    def plan(self, needs: Collection[Need], at_once: Collection[Need] | None = None) -> str:
        """Return a sentence on the trainings to come, such as "4 runs at a time on 8 GPUs; 96 runs".

        Args:
            needs: needs of the trainings, at least one.
            at_once: needs of those that do not wait for others, such as the trials of a sweep's `parallel`; None for
                all.
        """
        total = _count(len(needs), "run")
        needs = needs if at_once is None else at_once
        most = self.fitting(needs)
        largest = max(needs, key=lambda one: (one.gpus, one.cores))
        least = min(most, self.fitting([largest] * len(needs)))
        at_a_time = f"{least} to {most} runs" if least < most else _count(most, "run")
        on_gpus = any(need.gpus for need in needs)
        where = _count(self.gpus, "GPU") if on_gpus else _count(self.cores, "core")
        text = f"{at_a_time} at a time on {where}; {total}"
        idle = self.cores - sum(sorted(need.cores for need in needs)[:most])
        if on_gpus or idle <= 0:
            return text
        stay = "stays" if idle == 1 else "stay"
        return f"{text}; {_count(idle, 'core')} {stay} idle: runtime.threads_per_rank gives each rank more"

    def offer(self, workflow: Any, needs: Collection[Need]) -> None:
        """Make Snakemake count GPUs, and jobs lock the devices that they use.

        Args:
            workflow: Snakemake's workflow, before it has jobs.
            needs: needs of all runs that are not sealed.
        """
        os.environ[CORES_PER_RUN] = str(max(1, self.cores // self.fitting(needs)))
        if self.gpus:
            workflow.register_resource("gpus", self.gpus)


def this_machine(
    cores: int | None, settings: Iterable[RunSettings], *, counted: int | None = None
) -> Machine | None:
    """Return what Snakemake may use of this machine; None if jobs run elsewhere.

    Args:
        cores: Snakemake's cores; None if jobs run elsewhere.
        settings: settings of all runs. Without runs that may use GPUs, the GPUs are not listed.
        counted: value of `--resources gpus=N`, if given.

    Raises:
        LaunchError: CUDA_VISIBLE_DEVICES names no GPU of this machine.
    """
    if cores is None:
        return None
    gpus = 0
    if num_gpus() and any(one.accelerator != "cpu" for one in settings):
        gpus = len(usable_gpus(list_gpus(), os.environ))
    return Machine(cores=cores, gpus=gpus if counted is None else min(gpus, counted))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
