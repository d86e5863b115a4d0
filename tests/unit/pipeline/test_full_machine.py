"""How many runs Snakemake starts at a time on this machine, and the sentence that says so."""

import os
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.config.settings.config import Runtime
from shardline.config.settings.run_settings import RunSettings
from shardline.launch.device_share import CORES_PER_RUN
from shardline.pipeline import full_machine
from shardline.pipeline.full_machine import Machine, Need, this_machine
from shardline.pipeline.jobs import Jobs
from shardline.results.check.checked_sweeps import check_sweeps
from tests.support.studies import load


def needs(machine, *devices, threads=0, **settings):
    runtime = Runtime(threads_per_rank=threads)
    return [machine.need(RunSettings(devices=one, **settings), runtime) for one in devices]


@pytest.mark.parametrize(
    ("machine", "devices", "sentence"),
    [
        (Machine(cores=64, gpus=8), [2] * 96, "4 runs at a time on 8 GPUs; 96 runs"),
        (Machine(cores=64, gpus=8), [1] * 3, "3 runs at a time on 8 GPUs; 3 runs"),
        (Machine(cores=64, gpus=8), [8, 1, 1, 1], "1 to 3 runs at a time on 8 GPUs; 4 runs"),
        (Machine(cores=2), [1] * 8, "2 runs at a time on 2 cores; 8 runs"),
        (Machine(cores=1), [1], "1 run at a time on 1 core; 1 run"),
        (
            Machine(cores=8), [1],
            "1 run at a time on 8 cores; 1 run; 7 cores stay idle: runtime.threads_per_rank gives each rank more",
        ),
    ],
)  # fmt: skip
def test_the_plan_in_a_sentence(machine, devices, sentence):
    assert machine.plan(needs(machine, *devices)) == sentence


def test_trials_that_wait_for_others_are_counted_and_do_not_run_at_the_same_time(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    project = load(parallel={0: 2, 6: 3}, trials=9, seeds=2)
    (plan,) = project.sweeps.values()
    jobs = Jobs(project, None, is_main=True, cores=8)
    trial = SimpleNamespace(
        rule=SimpleNamespace(name="train_trial"), wildcards=SimpleNamespace(study=plan.id)
    )
    sentence = jobs.plan_of_machine([trial] * 18)
    assert sentence.startswith("6 runs at a time on 8 cores; 18 runs; 2 cores stay idle")
    monkeypatch.setenv(CORES_PER_RUN, "8")
    jobs.offer_devices(SimpleNamespace())
    # the base run, and six trainings
    assert os.environ[CORES_PER_RUN] == str(8 // 7)


def test_the_start_and_the_check_name_trials_beyond_the_last_whole_bracket(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stop = {"halving": {"rungs": [1, 3, 9], "keep": 3}}
    project = load(trials=20, stop=stop)
    (plan,) = project.sweeps.values()
    sentence = (
        "sweeps.s.trials=20: the last 2 are no whole bracket of 9, so that they may wait at a rung until trials is "
        "raised; set trials to 18 or 27"
    )
    trial = SimpleNamespace(
        rule=SimpleNamespace(name="train_trial"), wildcards=SimpleNamespace(study=plan.id)
    )
    for cores in (8, None):  # on this machine, and where jobs run elsewhere
        jobs = Jobs(project, None, is_main=True, cores=cores)
        assert sentence in jobs.plan_of_machine([trial] * 20).splitlines()
        assert jobs.plan_of_machine([]) == ""
    assert sentence in [one.text for one in check_sweeps(project, [*project.sweeps.values()])]
    assert check_sweeps(project, []) == []
    whole = load(trials=18, stop=stop)
    found = check_sweeps(whole, [*whole.sweeps.values()])
    assert not any("bracket" in one.text for one in found)


def test_what_a_run_needs():
    machine = Machine(cores=8, gpus=4)
    assert needs(machine, 2, threads=3) == [Need(cores=6, gpus=2)]
    assert needs(machine, 1, accelerator="cpu") == [Need(cores=1)]
    assert needs(machine, 1, nodes=2) == [Need(cores=8, gpus=4)], "other machines are not counted"
    assert needs(machine, 16, elastic=True) == [Need(cores=8, gpus=4)]
    alone = machine.need(RunSettings(devices=1), Runtime(), is_alone=True)
    assert alone == Need(cores=8, gpus=4)


@given(
    st.builds(Machine, cores=st.integers(1, 64), gpus=st.integers(0, 8)),
    st.lists(st.integers(1, 8), min_size=1, max_size=20),
)
def test_what_fits_is_never_more_than_there_is(machine, devices):
    asked = needs(machine, *devices)
    number = machine.fitting(asked)
    assert 1 <= number <= len(devices)
    first = sorted(asked, key=lambda one: (one.gpus, one.cores))[:number]
    assert sum(one.gpus for one in first) <= machine.gpus
    assert number == 1 or sum(one.cores for one in first) <= machine.cores


def test_gpus_are_counted_as_inherited_and_at_most_as_given(monkeypatch):
    listed = []
    gpus = full_machine.__dict__["list_gpus"]
    monkeypatch.setattr(full_machine, "list_gpus", lambda: listed.append(1) or gpus())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    cpu, auto = RunSettings(accelerator="cpu"), RunSettings()
    assert this_machine(None, [auto]) is None
    assert this_machine(8, [cpu]) == Machine(cores=8)
    assert not listed, "without runs that may use GPUs, none are listed"
    assert this_machine(8, [cpu, auto]) == Machine(cores=8, gpus=3)
    assert this_machine(8, [auto], counted=2) == Machine(cores=8, gpus=2)


def test_snakemake_counts_gpus_and_jobs_get_their_cores(monkeypatch):
    monkeypatch.delenv("SHARDLINE_CORES_PER_RUN", raising=False)
    counted = {}
    workflow = SimpleNamespace(register_resource=counted.__setitem__)
    machine = Machine(cores=64, gpus=8)
    machine.offer(workflow, needs(machine, *[2] * 96))
    assert counted == {"gpus": 8}
    assert full_machine.os.environ["SHARDLINE_CORES_PER_RUN"] == "16"
    monkeypatch.delenv("SHARDLINE_CORES_PER_RUN")
