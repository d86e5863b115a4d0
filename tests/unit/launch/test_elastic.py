"""Which ranks an elastic run gets where fewer are there than planned, and what each of them does."""

import os
from itertools import product

import pytest
from msgspec import structs

from shardline.config.checks import check_devices
from shardline.config.resolved import ActualGeometry, PlannedGeometry, fit_geometry, settings_on
from shardline.config.settings.run_settings import RunSettings, Trainer
from shardline.errors import ConfigError, LaunchError
from shardline.launch import start as start_module
from shardline.launch.slurm.allocation import check_allocation, parse_job
from shardline.launch.start import find_geometry, prepare_start
from shardline.training.optimizer_steps import rescaled
from tests.unit.launch.test_launch_start import JOB, RUNTIME


def settings(nodes=2, devices=2, accumulate=1, *, elastic=True, accelerator="cpu"):
    return RunSettings(
        nodes=nodes,
        devices=devices,
        elastic=elastic,
        accelerator=accelerator,
        trainer=Trainer(accumulate=accumulate),
    )


def of(nodes, devices):
    return ActualGeometry(nodes=nodes, devices=devices)


def fitted(*planned, **there):
    geometry = PlannedGeometry.of(settings(*planned))
    found = fit_geometry(geometry, run="r", **there)
    return found.nodes, found.devices


def here(given, *, env=None, num_cpus=8, num_gpus=0, **runtime):
    known = structs.replace(RUNTIME, **runtime)
    found = find_geometry(
        given, run="r", runtime=known, env=env or {}, num_cpus=num_cpus, num_gpus=num_gpus
    )
    return found.nodes, found.devices


@pytest.mark.parametrize(
    ("planned", "there", "found"),
    [
        ((2, 2, 1), (1, 2), (1, 2)),
        ((2, 2, 1), (2, 1), (2, 1)),
        ((2, 2, 1), (9, 9), (2, 2)),  # never more than planned
        ((4, 1, 1), (3, 1), (2, 1)),  # 3 ranks cannot share 4 parts
        ((4, 1, 3), (3, 1), (3, 1)),  # but 12
        ((1, 4, 1), (1, 3), (1, 2)),
        ((2, 2, 1), (2, 2), (2, 2)),
        ((3, 1, 1), (2, 1), (1, 1)),
    ],
)
def test_the_largest_geometry_that_shares_the_planned_parts_evenly(planned, there, found):
    assert fitted(*planned, nodes=there[0], devices=there[1]) == found


def test_machines_that_a_scheduler_gave_are_all_used_or_refused():
    assert fitted(4, 2, nodes=2, devices=2, uses_all=True) == (2, 2)
    with pytest.raises(LaunchError, match=r"on 3 x 1, which cannot share the 4 parts .* divides 4"):
        fitted(4, 1, nodes=3, devices=1, uses_all=True)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_every_rank_takes_as_many_parts_as_make_the_planned_global_batch(accumulate):
    planned = settings(2, 3, accumulate)
    for nodes, devices in product(range(1, 3), range(1, 4)):
        if 6 * accumulate % (nodes * devices):
            continue
        found = settings_on(planned, of(nodes, devices), run="r")
        assert found.trainer.accumulate * nodes * devices == 6 * accumulate
    assert planned.trainer.accumulate == accumulate, "what was planned stays as it is"


def test_other_ranks_than_planned_are_refused_by_name():
    with pytest.raises(
        LaunchError,
        match=r'run "r" is planned for nodes=2 x devices=2, but its ranks are on 1 x 2; .*elastic: true',
    ):
        settings_on(settings(elastic=False), of(1, 2), run="r")
    with pytest.raises(LaunchError, match=r"start a number of ranks that divides 4"):
        settings_on(settings(), of(1, 3), run="r")


def test_what_there_is_on_one_machine():
    assert here(settings(1, 4), num_cpus=2) == (1, 2)
    assert here(settings(1, 4), num_cpus=2, oversubscribe=True) == (1, 4)
    assert here(settings(1, 4), num_cpus=2, env={"SLURM_JOB_ID": "17"}) == (1, 4)
    assert here(settings(1, 4, accelerator="gpu"), num_gpus=3) == (1, 2)
    assert here(settings(1, 4, elastic=False), num_cpus=2) == (1, 4)


def test_what_there_is_on_several(monkeypatch):
    assert here(settings(2, 2), hosts=["a"]) == (1, 2)
    assert here(settings(2, 2), hosts=["a", "b"]) == (2, 2)
    monkeypatch.setattr(start_module, "allocation_of_launch", lambda env: parse_job("17", JOB))
    assert here(settings(4, 1), env={"SLURM_JOB_ID": "17"}) == (2, 1)
    assert here(settings(4, 1, elastic=False), env={"SLURM_JOB_ID": "17"}) == (4, 1)


def test_too_little_without_elastic_names_it_as_a_remedy(monkeypatch):
    with pytest.raises(LaunchError, match="planned for nodes=3; .*, or set elastic: true"):
        check_allocation(parse_job("17", JOB), nodes=3, cpus=4)
    with pytest.raises(LaunchError, match=r"runtime.hosts lists 1 \(a\); .*set elastic: true"):
        prepare_start(
            ["-m", "x"], run_id="r", geometry=of(2, 1), accelerator="cpu", env={}, num_cpus=2,
            runtime=structs.replace(RUNTIME, hosts=["a"]),
        )  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    check_devices(settings(1, 2), RUNTIME, "row 2")
    with pytest.raises(ConfigError, match="has 1 CPU cores; use at most 1.*set elastic: true"):
        check_devices(settings(1, 2, elastic=False), RUNTIME, "row 2")


def test_counts_of_micro_batches_at_another_number_a_step():
    whole = {"ready": 6, "started": 6, "processed": 6, "completed": 6}
    assert rescaled(whole, 2, 4) == dict.fromkeys(whole, 12)
    assert rescaled(whole, 2, 1) == dict.fromkeys(whole, 3)
    saved_in_mid_epoch = {**whole, "completed": 5}  # the last batch's end is not over
    for before, now in product((1, 2, 3), repeat=2):
        found = rescaled(saved_in_mid_epoch, before, now)
        assert found["ready"] - found["completed"] == 1
        assert rescaled(found, now, before) == saved_in_mid_epoch
