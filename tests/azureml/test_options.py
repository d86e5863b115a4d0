"""What rules and settings may ask for, by a workflow of their own: it reaches the service, and holds.

Each SDK's workflow runs on a service of its own, both side by side; the tests then look at what
each came to.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.azureml.emulator import AzureMLEmulator
from tests.azureml.emulator.jobs import Job
from tests.azureml.pipeline import Pipeline
from tests.support.needs import params_to_run

pytestmark = pytest.mark.slow
MIB = 1024**2
REQUEST_TIMEOUT_S = 8
LIST = {"v1": r"POST .*/runs:query$", "v2": r"GET .*/jobs$"}
STATUS = {"v1": r"GET .*/runs/part-[^/]+$", "v2": r"GET .*/jobs/part-[^/]+$"}
# While jobs are submitted: v1 sends files of the code through a client with limits of its own.
ENVIRONMENT, FILE = "GET .*/environments/snakemake-", r"PUT .*/snapshots/[^/]+$"
HANG = {"v1": [ENVIRONMENT, FILE], "v2": [ENVIRONMENT]}
CLIENT = "00000000-0000-0000-0000-00000000000c"
CONDA = "name: extra\ndependencies:\n- python=3.11\n- samtools=1.20\n"
LOCK = "torch==2.13.0\n"

SNAKEFILE = """
STORE = "$STORE"


rule all:
    localrule: True
    input: "all.txt", "ranks.txt", "tuned.txt", "final.txt", "here.txt", expand("pair-{n}.txt", n=[1, 2])


checkpoint plan:
    output: "plan.txt"
    shell: "printf 'a b c' >{output}"


rule part:
    input: "plan.txt"
    output: "part-{part}.txt"
    threads: 2
    resources: mem_mb=300
    shell: "until [ -e $STORE/go ]; do sleep 0.1; done; echo {wildcards.part} {threads} {resources.mem_mb} >{output}"


def planned(wildcards):
    with checkpoints.plan.get().output[0].open() as file:
        return expand("part-{part}.txt", part=file.read().split())


rule gather:
    input: planned
    output: "all.txt"
    shell: "cat {input} >{output}"


rule ranks:
    output: "ranks.txt"
    resources: nodes=2, azureml_distribution="mpi", azureml_processes_per_node=1
    shell:
        "$SNAKEMAKE_AZUREML_LAUNCH -- sh -c 'echo $SNAKEMAKE_AZUREML_RANK of $OMPI_COMM_WORLD_SIZE on "
        "$(hostname) >$STORE/rank-$SNAKEMAKE_AZUREML_RANK' && cat $STORE/rank-* >{output}"


rule tuned:
    output: "tuned.txt"
    shell: "df --block-size=1 --output=size /dev/shm | tail -1 >{output}; echo $AZURE_CLIENT_ID >>{output}"


rule sketch:
    output: temp("sketch.txt")
    group: "chain"
    resources: mem_mb=100, disk_mb=100
    shell: "hostname >{output}"


rule draft:
    input: "sketch.txt"
    output: "draft.txt"
    group: "chain"
    resources: mem_mb=100, disk_mb=100
    shell: "cat {input} >{output}; hostname >>{output}"


rule final:
    input: "draft.txt"
    output: "final.txt"
    group: "chain"
    resources: mem_mb=100, disk_mb=100
    shell: "cat {input} >{output}; hostname >>{output}"


rule pair:
    output: "pair-{n}.txt"
    group: "pairs"
    resources: nodes=2
    shell:
        "$SNAKEMAKE_AZUREML_LAUNCH -- sh -c 'echo $WORLD_SIZE >$STORE/pair-{wildcards.n}-$RANK' && "
        "cat $STORE/pair-{wildcards.n}-* >{output}"


rule here:
    localrule: True
    input: "final.txt"
    output: "here.txt"
    shell: "hostname >{output}"


rule late:
    output: "late.txt"
    resources: runtime=1
    shell: "sleep 300"


rule taken:
    output: "taken.txt"
    resources: azureml_compute="low-cluster"
    shell:
        "start=$(ls $STORE | grep -c ^start- || true); echo this is start number $start; "
        "touch $STORE/start-$start; if [ $start = 2 ]; then exit 3; fi; sleep 300"
"""
# Python runs it first; what it writes names who has moved the process to another folder.
SITECUSTOMIZE = """
import sys
import traceback
from pathlib import Path

MOVES = Path(__file__).with_name("moves")


def note(event, arguments):
    if event == "os.chdir":
        with MOVES.open("a") as file:
            print(arguments[0], *traceback.format_stack(), sep="\\n", file=file)


sys.addaudithook(note)
MOVES.touch()
"""
# What `tuned` asks for in the profile.
TUNED: dict[str, dict[str, Any]] = {
    "v1": {"azureml_priority": 3},
    "v2": {"azureml_priority": "low", "azureml_instance_type": "Standard_NC24ads_A100_v4"},
}
DOCKER_ARGS = "--ulimit memlock=-1"
BOTH = {"docker_args": DOCKER_ARGS, "shm_size": "96m", "runtime": 7}


class Options(Pipeline):
    """A checkout of the workflow above."""

    def check_out(self) -> None:
        """Write Snakefile, environment and profile."""
        self.path.mkdir(parents=True)
        self.watch.mkdir()
        (self.watch / "sitecustomize.py").write_text(SITECUSTOMIZE)
        (self.path / "Snakefile").write_text(SNAKEFILE)
        (self.path / "conda.yaml").write_text(CONDA)
        (self.path / "lock.txt").write_text(LOCK)
        self.write_profile({
            "executor": "azureml",
            "jobs": 20,
            "keep-going": True,
            "default-storage-provider": "azure",
            "group-components": ["pairs=2"],
            "default-resources": {"runtime": 60},
            "set-resources": {"tuned": {**BOTH, **TUNED[self.sdk]}},
            "azureml-image": "registry.example.com/training:1",
            "azureml-conda-file": "conda.yaml",
            "azureml-lock": "lock.txt",
            "azureml-identity": f"managed:{CLIENT}",
            "azureml-request-timeout-s": REQUEST_TIMEOUT_S,
            **self.site("STORE"),
        })  # fmt: skip

    @property
    def watch(self) -> Path:
        """The folder of what looks at Snakemake from within."""
        return self.path.parent / "watch"

    @property
    def environment(self) -> dict[str, str]:
        """What Snakemake has set, and what looks at it from within."""
        inherited = super().environment
        return {**inherited, "PYTHONPATH": f"{self.watch}:{inherited['PYTHONPATH']}"}

    def text(self, name: str) -> str:
        """Return a result, as the storage has it."""
        storage = self.service.blob_storage
        assert storage is not None
        return storage.read(self.name, f"project/{name}").decode()

    def the(self, rule: str) -> Job:
        """Return the only job of a rule or a group."""
        (job,) = self.jobs(f"{rule}-")
        return job


def tell(run: Options) -> list[int]:
    """Run the workflow to its end, then what goes wrong; return the lists of jobs in between."""
    service = run.service
    service.container(run.name)
    for request in HANG[run.sdk]:
        service.fail(request, "hang")
    run.start()
    parts: Callable[[], list[Job]] = lambda: run.jobs("part-")  # noqa: E731
    run.wait_until(
        lambda: (
            [job.status for job in parts()] == ["Running"] * 3
            and run.told().count("Azure ML job part-") == 3
        ),
        "three jobs at a time",
    )
    service.fail(LIST[run.sdk], "hang")
    run.wait_until(lambda: service.faults_left() == [], "hanging question")
    since = len(service.requests)
    run.wait_until(lambda: len(run.asked(LIST[run.sdk], since)) >= 3, "lists of jobs")
    lists = run.asked(LIST[run.sdk], since)
    (run.store / "go").touch()
    assert run.end() == 0, run.story()

    service.ways.limit_scale = 0.1
    run.start("late", "taken", "--azureml-identity", "user")
    for start in range(2):
        run.wait_until((run.store / f"start-{start}").exists, f"start {start}")
        service.preempt(run.the("taken").name)
    assert run.end() == 1
    return lists


@pytest.fixture(scope="module")
def runs(
    start_azureml: Callable[..., AzureMLEmulator],
    azurite_installed: None,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, "Future[tuple[Options, list[int]]]"]]:
    """The workflow by each SDK that is tested."""
    folders = {sdk: tmp_path_factory.mktemp(sdk) for sdk in sorted(params_to_run(request, "sdk"))}
    services = {sdk: start_azureml(nodes=4, azurite=True) for sdk in folders}

    def start(sdk: str) -> tuple[Options, list[int]]:
        run = Options(folders[sdk] / "project", services[sdk], f"options-{sdk}", sdk)
        return run, tell(run)

    with ThreadPoolExecutor() as pool:
        yield {sdk: pool.submit(start, sdk) for sdk in folders}


@pytest.fixture
def run(sdk: str, runs: Mapping[str, "Future[tuple[Options, list[int]]]"]) -> Options:
    """What the workflow came to."""
    return runs[sdk].result()[0]


# The tests of one workflow together, since it takes long and they do not; both SDKs are in each run
# of tests/azureml/test_pipeline.py.
BY_V2 = pytest.param("v2", marks=pytest.mark.rotating("workflow-v2"))
both_sdks = pytest.mark.parametrize("sdk", ["v1", BY_V2])


@both_sdks
def test_a_checkpoint_decides_on_jobs_that_get_their_threads_and_memory(run):
    assert run.text("all.txt") == "".join(f"{part} 2 300\n" for part in "abc")
    assert len(run.jobs("part-")) == 3


@both_sdks
def test_several_jobs_are_asked_for_by_one_list(run, runs):
    first, *_, last = runs[run.sdk].result()[1]
    single = [place for place in run.asked(STATUS[run.sdk]) if first < place < last]
    assert single == []


@both_sdks
def test_a_service_that_does_not_answer_is_asked_again(run):
    assert run.service.faults_left() == []
    hung = [request for request in run.service.requests if request.status == 0]
    expected = [*HANG[run.sdk], LIST[run.sdk]]
    assert [request.method for request in hung] == [request.split()[0] for request in expected]


@both_sdks
def test_snakemake_stays_in_its_folder_while_jobs_are_submitted(run):
    # Its paths are relative: were it elsewhere for a moment, inputs and results would be missing.
    assert (run.watch / "moves").read_text() == ""


@both_sdks
def test_a_jobs_page_is_told_with_the_tenant(run):
    pages = re.findall(r"https://ml\.azure\.com/runs/\S+", run.told(1) + run.told(2))
    assert {page.count("&tid=") for page in pages} == {1}


@both_sdks
def test_an_mpi_process_for_each_node(run):
    job = run.the("ranks")
    assert (job.spec.distribution, job.spec.nodes, job.spec.processes_per_node) == ("Mpi", 2, 1)
    lines = [f"{rank} of 2 on {node}\n" for rank, node in enumerate(job.nodes)]
    assert run.text("ranks.txt") == "".join(lines)


@both_sdks
def test_resources_of_the_profile_reach_the_job(run):
    job = run.the("tuned")
    size, client = run.text("tuned.txt").split()
    assert (int(size), client) == (96 * MIB, CLIENT)
    assert (job.spec.shm_size, job.spec.timeout_s) == ("96m", 7 * 60)
    asked = job.spec.definition
    if run.sdk == "v2":
        assert (job.spec.compute, job.spec.priority) == ("serverless", 1)
        assert asked["resources"]["instanceType"] == "Standard_NC24ads_A100_v4"
        assert asked["resources"]["dockerArgs"] == DOCKER_ARGS
    else:
        assert (job.spec.compute, job.spec.priority) == ("cpu-cluster", 3)
        assert asked["docker"]["arguments"] == DOCKER_ARGS.split()


@both_sdks
def test_jobs_have_the_identity_that_is_set(run):
    managed, user = run.the("tuned").spec.definition, run.the("taken").spec.definition
    if run.sdk == "v2":
        assert managed["identity"] == {"identityType": "Managed", "clientId": CLIENT}
        assert user["identity"] == {"identityType": "UserIdentity"}
    else:
        assert [job["credentialPassthrough"] for job in (managed, user)] == [False, True]


@both_sdks
def test_the_environment_is_the_image_with_the_conda_file(run):
    state = run.service.state
    if run.sdk == "v2":
        (environment,) = (v for (kind, *_), v in state.assets.items() if kind == "environments")
        assert environment["properties"]["image"] == "registry.example.com/training:1"
        assert "samtools=1.20" in environment["properties"]["condaFile"]
    else:
        (environment,) = state.environments.values()
        assert environment["docker"]["baseImage"] == "registry.example.com/training:1"
        assert "samtools=1.20" in environment["python"]["condaDependencies"]["dependencies"]
        assert environment["python"]["userManagedDependencies"] is False


@both_sdks
def test_a_group_is_one_job_with_files_between_its_rules(run):
    job = run.the("draft_final_sketch")
    assert run.text("final.txt") == f"{job.nodes[0]}\n" * 3
    assert job.spec.timeout_s == 3 * 60 * 60
    log = "".join(job.logs.values())
    assert re.findall(r"(Retrieving from|Storing in) storage: .*/(.*)", log) == [
        ("Storing in", "draft.txt"), ("Storing in", "final.txt"),
    ]  # fmt: skip
    stored = run.service.blob_storage.blobs(run.name)
    assert "project/draft.txt" in stored
    assert "project/sketch.txt" not in stored


@both_sdks
def test_the_members_of_a_group_take_turns_on_its_nodes(run):
    assert run.the("pair").spec.nodes == 2
    assert [run.text(f"pair-{n}.txt") for n in (1, 2)] == ["2\n2\n"] * 2


@both_sdks
def test_a_local_rule_runs_here(run):
    assert run.text("here.txt") == "login\n"
    assert run.jobs("here") == run.jobs("all") == []


@both_sdks
def test_a_job_ends_at_the_time_limit_of_its_rule(run):
    job = run.the("late")
    assert (job.spec.timeout_s, job.status) == (60, "Canceled")
    told = f"Azure ML job {job.name} was cancelled, by a user or at its time limit (the resource runtime)"
    assert told in run.told(2)


@both_sdks
def test_a_failure_shows_the_log_of_the_last_start(run):
    job = run.the("taken")
    assert (job.status, job.attempts) == ("Failed", 3)
    told = run.told(2)
    assert "The end of user_logs/retry_002/std_log.txt" in told
    assert "    this is start number 2" in told
    assert "this is start number 0" not in told
    assert "this is start number 1" not in told
