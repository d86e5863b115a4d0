"""An elastic training on a real Slurm: its job loses a node of two, and goes on with the other."""

import pytest

from shardline.supervision.attempt_log import read_attempts
from tests.slurm.test_training_accidents import MODEL, ROW, RUNTIME, Training
from tests.support.slurm.pipeline import Pipeline
from tests.support.workspace import Workspace


@pytest.mark.rotating
@pytest.mark.fault
@pytest.mark.slow
def test_a_job_that_is_queued_again_with_a_node_less_goes_on(
    start_slurm, tmp_path, record_property
):
    cluster = start_slurm()
    project = Pipeline(Workspace(tmp_path), cluster)
    project.workspace.write("slow.py", MODEL)
    project.configure(runtime=RUNTIME, **{**ROW, "trainer.max_epochs": 2, "elastic": "true"})
    done = project.run("--executor", "local", "--cores", "2", "--until", "seal_dataset")
    assert done.returncode == 0, done.stdout

    run = Training(project)
    run.start()
    run.wait_for_checkpoint()
    cluster.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=test")
    cluster.scontrol("requeuehold", run.job)
    run.wait_for_state("PENDING")
    cluster.scontrol("update", f"JobId={run.job}", "NumNodes=1", "NumTasks=1")
    run.hurry()
    cluster.scontrol("release", run.job)
    assert run.end() == 0, run.told() + project.log()
    found = project.provenance()
    assert [attempt["world"] for attempt in found["attempt_log"]] == [2, 1]
    assert found["attempt_log"][1]["resumed_step"] > 0
    assert (found["world"]["world_size"], found["world"]["nodes"]) == (1, 1)
    assert found["training"]["steps"] == pytest.approx(40, abs=2)
    cut_short, _ = read_attempts(project.workspace.the("store/work/*"))
    record_property("steps_lost", cut_short.steps_lost)
    record_property("seconds_lost", cut_short.lost_s)
    assert list(project.samples()) == list(range(1, found["training"]["steps"] + 1))
