"""Job arrays of the Slurm plugin contain only jobs that request the same."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snakemake_executor_plugin_slurm import Executor

from shardline.launch.slurm.arrays import alike, arrays_of_equals


def job(name="a", threads=1, **resources):
    return SimpleNamespace(name=name, threads=threads, resources=resources)


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3), st.sampled_from(["", "gpu:1"]))))
def test_groups_request_the_same_and_contain_each_job_once(asked):
    jobs = [
        job(i, threads, nodes=nodes, gres=gres) for i, (threads, nodes, gres) in enumerate(asked)
    ]
    groups = alike(jobs)
    assert sorted(one.name for group in groups for one in group) == [*range(len(jobs))]
    requests = [{(one.threads, repr(one.resources)) for one in group} for group in groups]
    assert all(len(request) == 1 for request in requests)
    assert len(frozenset().union(*requests)) == len(groups)


def test_an_array_for_each_request_and_a_job_for_a_single_one(monkeypatch: pytest.MonkeyPatch):
    submitted = []
    monkeypatch.setattr(
        Executor,
        "_submit_array_jobs",
        lambda self, jobs: submitted.append([one.name for one in jobs]),
    )
    monkeypatch.setattr(Executor, "_submit_job", lambda self, one: submitted.append(one.name))
    arrays_of_equals()
    arrays_of_equals()  # once is enough
    executor = object.__new__(Executor)
    small, large = {"nodes": 1}, {"nodes": 2}
    executor._submit_array_jobs(
        [job("a", **small), job("b", **large), job("c", **small), job("d", nodes=3)]
    )
    assert submitted == [["a", "c"], "b", "d"]
