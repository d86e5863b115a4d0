"""The whole main job through the shipped profile on an emulated Azure ML, and what befalls it.

Each SDK's stories happen side by side, each on a service of its own; the tests then look at what
each came to, beside the same run on one machine.
"""

import json
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from shardline.core.digests import file_sha256
from tests.azureml.emulator import AzureMLEmulator
from tests.azureml.emulator.jobs import Job
from tests.azureml.pipeline import IMAGE, MODEL, NUM_STEPS, ROW, RUNTIME, Pipeline, Results
from tests.support.needs import params_to_run
from tests.support.workspace import TINY_CONFIG, Workspace

pytestmark = pytest.mark.slow
AT_ONCE = 3  # stories; they mostly wait
NODE_WAIT_S = 10
# Both ways to start the ranks, each through one of the SDKs.
WAYS: dict[str, dict[str, Any]] = {
    "v2": {"azureml_distribution": "pytorch", "azureml_processes_per_node": 1},
    "v1": {"azureml_distribution": "mpi", "azureml_processes_per_node": 2},
}
GEOMETRY = {"nodes": 2, "devices": 2}
SUBMISSION = {"v1": "POST .*/snapshotrun$", "v2": "PUT .*/jobs/[^/]+$"}
TRACKING = r"POST .*/mlflow/.*/runs/log-batch$"
STATUS = {"v1": "GET .*/runs/train-[^/]+$", "v2": "GET .*/jobs/train-[^/]+$"}
CONTRACT = (
    "run.json", "identity.json", "metrics.jsonl", "model.safetensors", "provenance.json",
    "evaluation.json",
)  # fmt: skip


def main_job(run: Pipeline) -> None:
    """From nothing to the report, a second time, and once more from an empty checkout."""
    run.service.container(run.name)
    run.configure(train=WAYS[run.sdk], **GEOMETRY)
    run.hurry()
    run.run()
    run.run()
    empty = Pipeline(empty_checkout(run), run.service, run.name, run.sdk)
    empty.configure(train=WAYS[run.sdk], **GEOMETRY)
    empty.run()
    assert "Nothing to be done" in empty.told()


def empty_checkout(run: Pipeline) -> Path:
    """Return where the same project is checked out once more."""
    return run.path.parent / "other/project"


def outlived(run: Pipeline) -> None:
    """The service has bad days, the nodes are taken away, and the controller is killed twice."""
    service = run.service
    train = {**WAYS[run.sdk], "azureml_compute": service.low_priority_compute}
    run.configure(train=train, **GEOMETRY)
    service.fail(SUBMISSION[run.sdk], "429", times=6, retry_after=1)
    service.fail(SUBMISSION[run.sdk], "500", times=2)
    service.fail(SUBMISSION[run.sdk], "drop")
    run.wait()  # a busy machine imports the tracker's client while it trains
    run.start("--until", "train")
    run.wait_for_checkpoint()
    # A tracker that connects later would meet the faults that are for the controller.
    run.wait_until(lambda: bool(run.asked(TRACKING)), "metrics at the service")
    assert service.faults_left() == []
    # now, since near its end the training waits for `hurry` and logs nothing
    service.fail(TRACKING, "drop")
    service.fail(TRACKING, "500", times=2)
    run.go_on()
    run.kill()
    run.wait_for_checkpoint(is_watched=False)

    run.run("--unlock")
    run.start("--until", "train")
    run.wait_until(lambda: "is already running and is adopted" in run.told(), "adoption")
    service.fail(STATUS[run.sdk], "500", times=8)
    service.fail(STATUS[run.sdk], "expired-token")
    service.fail(STATUS[run.sdk], "slow", seconds=5)
    run.wait_until(lambda: service.faults_left() == [], "questions")
    since = len(service.requests)
    run.wait_until(lambda: len(run.asked(STATUS[run.sdk], since)) >= 2, "status that is told")
    (job,) = run.jobs()
    service.ways.nodes = 0  # others have them now
    service.preempt(job.name)
    run.wait_until(lambda: "Azure ML preempted job" in run.told(), "word of the preemption")
    service.ways.nodes = len(job.nodes)
    service.state.scheduler.dispatch()
    run.wait_until(lambda: job.attempts == 2, "second attempt")

    run.kill()
    run.run("--unlock")
    service.fail(STATUS[run.sdk], "429", times=1000, retry_after=1)
    run.start("--until", "train")
    run.wait_until(lambda: service.faults_left()[0].left < 1000, "a question")
    run.hurry()
    run.wait_until(lambda: job.is_over, "end of the job")
    service.mend()
    assert run.end() == 0, run.story()


def _commands_with(word: str) -> list[str]:
    """Return the command lines of this machine's processes that hold a word."""
    found = psutil.process_iter(["cmdline"])
    lines = (" ".join(process.info["cmdline"] or []) for process in found)
    return [line for line in lines if word in line]


def failing(run: Pipeline) -> None:
    """A node does not come, the user stops the next start, and in the one after it a rank fails."""
    service = run.service
    service.ways.cancel_grace_s = 60  # who needs longer is ended by force
    run.configure(site={"azureml-node-wait-s": NODE_WAIT_S}, train=WAYS[run.sdk], **GEOMETRY)
    service.fail("^train", "missing-node", node=1)
    run.start("--until", "train")
    assert run.end() == 1

    # the others come, however late on a busy machine
    profile = yaml.safe_load((run.path / "profiles/azureml/profile.yaml").read_text())
    run.write_profile({**profile, "azureml-node-wait-s": 300})
    run.start("--until", "train")
    run.wait_for_checkpoint()
    assert run.interrupt() == 1
    run.wait_until(lambda: run.jobs()[-1].is_over, "end of the job", is_watched=False)
    run.wait_until(lambda: not _commands_with(run.name), "end of its processes", is_watched=False)

    (run.store / "stumble").touch()
    run.start("--until", "train")
    assert run.end() == 1


STORIES = {
    f"{story.__name__}-{sdk}": (story, sdk)
    for story in (main_job, outlived, failing)
    for sdk in WAYS
}
# Each by one SDK and both SDKs in each run; the same stories by the other are of the rotating tier.
ALWAYS = ("main_job-v2", "outlived-v1", "failing-v2")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The dataset alone, made on one machine."""
    local = Results(tmp_path_factory.mktemp("local"), tmp_path_factory.mktemp("store"))
    (local.store / "hurry").touch()
    workspace = Workspace(local.folder)
    workspace.write("slow.py", MODEL)
    row = {"name": "local", **ROW, "nodes": 1, "devices": 4}
    workspace.configure({**TINY_CONFIG, "runtime": RUNTIME}, [row])
    _run_here(local, "--until", "seal_dataset")
    return local


@pytest.fixture(scope="module")
def stories(
    dataset: Results,
    start_azureml: Callable[..., AzureMLEmulator],
    azurite_installed: None,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, "Future[Pipeline]"]]:
    """The stories that are tested, side by side."""
    wanted = params_to_run(request, "story")
    names = [name for name in STORIES if name in wanted]

    def tell(name: str) -> Pipeline:
        story, sdk = STORIES[name]
        run = Pipeline(folders[name] / "project", services[name], name.replace("_", "-"), sdk)
        if story is not main_job:
            run.take_dataset(dataset)
        story(run)
        return run

    folders = {name: tmp_path_factory.mktemp(name) for name in names}
    services = {name: start_azureml(nodes=2, azurite=True) for name in names}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(tell, name) for name in names}


@pytest.fixture
def run(story: str, stories: dict[str, "Future[Pipeline]"]) -> Pipeline:
    """What one story came to."""
    return stories[story].result()


@pytest.fixture(scope="module")
def local(dataset: Results) -> Results:
    """The same run on one machine, with as many ranks."""
    _run_here(dataset)
    return dataset


def by_both_sdks(story: str) -> pytest.MarkDecorator:
    """Have a test look at a story of each SDK."""
    names = [name for name in STORIES if name.startswith(story)]

    def rotating(name: str) -> pytest.MarkDecorator:  # a story's tests together, for its sake
        return pytest.mark.rotating(name.replace("-", " "))

    values = [
        name if name in ALWAYS else pytest.param(name, marks=rotating(name)) for name in names
    ]
    return pytest.mark.parametrize("story", values)


def _run_here(local: Results, *arguments: str) -> None:
    done = Workspace(local.folder).snakemake(
        "--cores", "4", *arguments, env={"SHARDLINE_STORE": str(local.store)}
    )
    assert done.returncode == 0, done.stdout


def _statuses(run: Pipeline, rule: str = "") -> list[str]:
    return [f"{job.name.rpartition('-')[2]} {job.status}" for job in run.jobs(rule)]


def _curve(job: Job, name: str) -> list[tuple[int, float]]:
    return [(metric.step, metric.value) for metric in job.metrics if metric.key == name]


@by_both_sdks("main_job")
def test_the_whole_main_job(run):
    assert "Report: results/report/index.html" in run.told(1)
    for rule, number in {"build_shards": 2, "seal_dataset": 1, "train": 1, "evaluate": 1}.items():
        assert _statuses(run, rule) == ["1 Completed"] * number
    assert {job.spec.sdk for job in run.jobs()} == {run.sdk}
    assert {len(job.nodes) for job in run.jobs("train")} == {2}


@by_both_sdks("main_job")
def test_the_dataset_is_a_data_asset_of_the_workspace(run):
    (file,) = run.path.glob("results/datasets/*/data_asset.json")
    asset, dataset = json.loads(file.read_text()), file.parent.name
    assert (asset["name"], asset["version"]) == ("table", dataset)
    assert asset["path"].endswith(f"/{run.name}/datasets/{dataset}/")
    kept = run.service.state.assets["data", asset["name"], asset["version"]]["properties"]
    assert kept["dataUri"] == asset["path"]
    assert len(list((run.store / "datasets" / dataset).glob("*.safetensors"))) == 4
    assert kept["tags"]["manifest_sha256"] == file_sha256(file.with_name("manifest.json"))


@by_both_sdks("main_job")
def test_a_second_start_and_an_empty_checkout_make_nothing(run):
    assert "Nothing to be done" in run.told(2)
    assert len(run.jobs()) == 5
    for checkout in (run.path, empty_checkout(run)):
        latest = checkout / "results/latest" / run.name
        assert [name for name in CONTRACT if not (latest / name).is_file()] == []
        assert (checkout / "results/report/index.html").is_file()


@by_both_sdks("main_job")
def test_two_nodes_give_what_one_machine_gives(run, local):
    for what in ("identity", "samples", "losses", "weights", "evaluation"):
        assert getattr(run.results, what)() == getattr(local, what)(), what
    assert len(local.samples()) == NUM_STEPS
    ranks = run.results.provenance()["world"]["ranks"]
    assert [rank["host"] for rank in ranks] == ["node0", "node0", "node1", "node1"]
    assert [rank["local_rank"] for rank in ranks] == [0, 1, 0, 1]
    assert run.results.provenance()["environment"]["image"] == IMAGE.partition("@")[2]


@by_both_sdks("outlived")
def test_nothing_is_lost_or_submitted_twice(run, local):
    (job,) = run.jobs()
    assert (job.status, job.attempts) == ("Completed", 2)
    assert f"{job.name} has completed by now and is adopted" in run.told()
    assert run.service.faults_left() == []
    assert run.results.provenance()["attempts"] == 2
    assert run.told(3).count(f"Azure ML preempted job {job.name} (low priority)") == 1
    (step,) = run.results.resumed()
    assert 0 < int(step) < NUM_STEPS
    for what in ("samples", "losses", "weights"):
        assert getattr(run.results, what)() == getattr(local, what)(), what


@by_both_sdks("outlived")
def test_what_is_tried_again_is_told_in_one_line(run):
    told = run.told(1) + run.told(3)
    tried = re.findall(r".*retrying in \d+ s", told)
    assert re.search(
        r": \w+: TooManyRequests: Too many requests\. Please retry later\.; retrying", told
    )
    assert re.search(
        r": \w+: InternalServerError: An internal server error occurred\. .*; retrying", told
    )
    assert [line for line in tried if "{" in line] == []


@by_both_sdks("main_job")
def test_the_job_s_own_run_shows_the_training(run):
    (job,) = run.jobs("train")
    provenance = run.results.provenance()
    assert job.params["model"] == "slow:Slow"
    assert job.params["trainer.max_epochs"] == "4"
    assert job.params.keys() > {"dataset", "seed", "optim.lr", "nodes", "devices"}
    assert {key: value for key, value in job.tags.items() if key.startswith("shardline.")} == {
        "shardline.run": provenance["run"],
        "shardline.identity": provenance["identity"],
        "shardline.dataset": provenance["dataset"]["id"],
        "shardline.manifest": provenance["manifest_sha256"],
        "shardline.version": provenance["software"]["shardline"],
        "shardline.step": str(NUM_STEPS),
    }
    assert _curve(job, "train_loss") == run.results.losses()
    assert {metric.key for metric in job.metrics} >= {"train_loss", "val_loss", "epoch"}
    artifacts = {path: job.artifacts / path for path in job.claimed}
    weights = artifacts.pop("model.safetensors")
    assert file_sha256(weights) == provenance["files"]["model.safetensors"]
    (best,) = run.store.glob("work/*/checkpoints/best-*.safetensors")
    assert all(path.startswith("checkpoints/best-") for path in artifacts)
    assert artifacts[f"checkpoints/{best.name}"].read_bytes() == best.read_bytes()


@by_both_sdks("outlived")
def test_no_metric_is_lost_or_sent_twice(run):
    (job,) = run.jobs()
    assert _curve(job, "train_loss") == run.results.losses()
    logs = "".join(job.logs.values())
    assert logs.count("Warning: metrics cannot be sent to MLflow at present") == 1
    assert "not sent to MLflow" not in logs


@by_both_sdks("failing")
def test_a_node_that_does_not_come_is_named_before_the_deadline(run):
    assert re.search(rf"rank \d \(node 1\).* did not join within {NODE_WAIT_S} s", run.told(1))
    job = run.jobs()[0]  # the service itself would wait without end
    assert (job.status, {process.exit_code for process in job.processes}) == ("Failed", {1})


@by_both_sdks("failing")
def test_ctrl_c_cancels_the_jobs_and_they_end(run):
    assert _statuses(run) == ["1 Failed", "2 Canceled", "3 Failed"]
    assert f"Cancelling 1 Azure ML jobs: {run.jobs()[1].name}" in run.told(2)
    codes = {process.exit_code for process in run.jobs()[1].processes}
    assert codes.isdisjoint({None, 0, -signal.SIGKILL, 128 + signal.SIGKILL})


@by_both_sdks("failing")
def test_a_failed_rule_is_explained(run):
    told, job = run.told(3), run.jobs()[2]
    assert f"Azure ML job {job.name} failed. UserError: Execution failed. " in told
    assert f"Azure ML studio: https://ml.azure.com/runs/{job.name}?wsid=" in told
    assert "The end of user_logs/std_log_process_" in told
    assert "rank 3 on node1: ValueError: rank 3 stumbles" in told
