"""Command lines that build the image and start ranks in it, held by a file each; what is refused."""

import json
from pathlib import Path

import pytest
from msgspec import convert

from shardline.config.settings.config import Image, Runtime
from shardline.core.digests import file_sha256
from shardline.environments import container, image
from shardline.environments.container import container_command, image_python, with_variables
from shardline.environments.context import code_digest
from shardline.environments.image import build_command, find_tool, image_labels, image_name
from shardline.errors import ConfigError, LaunchError
from shardline.records.environments import BuiltImage

GOLDEN = Path(__file__).parents[2] / "golden" / "image"
DIGEST = f"sha256:{'d' * 64}"
BUILT = {
    "id": f"sha256:{'1' * 64}", "digest": DIGEST, "reference": f"registry.example/team/shardline@{DIGEST}",
    "archive": None, "base": "debian:12", "tool": "podman", "commit": "c" * 40, "version": "0", "lock": "a" * 64,
    "code": "b" * 64,
}  # fmt: skip
HERE = {**BUILT, "digest": BUILT["id"], "reference": None}
RUNS = {
    "podman": ("podman", {}, BUILT, False),
    "podman-not-pushed": ("podman", {"run_args": ["--runtime=runc"]}, HERE, False),
    "podman-gpus": ("podman", {"run_args": ["--device=/dev/infiniband", "--ulimit=memlock=-1"]}, BUILT, True),
    "docker": ("docker", {}, BUILT, False),
    "docker-gpus": ("docker", {}, HERE, True),
    "apptainer": ("apptainer", {}, BUILT, False),
    "apptainer-gpus": ("apptainer", {"container": "/shared/shardline.sif"}, HERE, True),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_ranks_in_a_container(name, golden):
    tool, settings, built, gpus = RUNS[name]
    command = container_command(
        tool, Image(**settings), image=convert(built, BuiltImage), gpus=gpus, user="1000:1000",
        folders=[Path("/home/me/project"), Path("/scratch/store")],
        variables=["OMP_NUM_THREADS", "NCCL_IB_HCA"],
    )  # fmt: skip
    golden(GOLDEN / f"run-{name}.txt", "\n".join(command) + "\n")


@pytest.mark.parametrize("tool", image.BUILDERS)
def test_builds(tool, golden):
    settings = Image(build_args=["--secret=id=pip.conf,src=/etc/pip.conf"])
    labels = image_labels("python:3.11-slim", commit="c0ffee", lock="a" * 64, code="b" * 64)
    command = build_command(
        tool, settings, name="localhost/shardline:1", labels={**labels, "org.opencontainers.image.version": "0"},
        context=Path("/tmp/context"), id_file=Path("/tmp/id"),
    )  # fmt: skip
    golden(GOLDEN / f"build-{tool}.txt", "\n".join(command) + "\n")


def test_every_command_line_is_held():
    names = {*(f"run-{name}" for name in RUNS), *(f"build-{tool}" for tool in image.BUILDERS)}
    assert {path.stem for path in GOLDEN.iterdir()} == names


def test_a_container_gets_its_ranks_place_and_no_value_is_on_the_command_line():
    env = {
        "SLURM_PROCID": "3", "OMPI_COMM_WORLD_RANK": "3", "CUDA_VISIBLE_DEVICES": "1", "SHARDLINE_STORE": "/s",
        "USER": "me", "PATH": "/bin", "AWS_SECRET_ACCESS_KEY": "s3cret", "SHARDLINE_IMAGE_DIGEST": "sha256:old",
    }  # fmt: skip
    command = with_variables(["podman", "run", "--rm", "IMAGE", "python"], env)
    names = ["CUDA_VISIBLE_DEVICES", "OMPI_COMM_WORLD_RANK", "SHARDLINE_STORE", "SLURM_PROCID", "USER"]  # fmt: skip
    assert command == ["podman", "run", *(f"--env={name}" for name in names), "--rm", "IMAGE", "python"]  # fmt: skip
    apptainer = ["apptainer", "exec", "IMAGE", "python"]
    assert with_variables(apptainer, env) == apptainer, "it passes all by itself"


@pytest.mark.parametrize(
    ("push", "name"),
    [
        ("", f"localhost/shardline:{'a' * 12}-{'b' * 12}"),
        ("registry.example:5000/shardline", f"registry.example:5000/shardline:{'a' * 12}-{'b' * 12}"),
        ("registry.example:5000/team/shardline:2", "registry.example:5000/team/shardline:2"),
    ],
)  # fmt: skip
def test_the_tag_says_what_is_in_an_image(push, name):
    assert image_name(push, {"lock": "a" * 64, "code": "b" * 64}) == name


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Return the words for ranks in an image of which something may be changed."""
    lock = tmp_path / "lock.txt"
    lock.write_text("torch==2.13.0\n")
    monkeypatch.setattr(container, "find_tool", lambda key, wanted, known: known[0])

    def words(**changed):
        document = tmp_path / "image.json"
        made = {**BUILT, "lock": file_sha256(lock), "code": code_digest(), **changed}
        document.write_text(json.dumps(made))
        return image_python(
            document, settings=Image(),
            runtime=Runtime(variables={"NCCL_DEBUG": "WARN"}, interface="ib0"),
            lock=lock, folders=[tmp_path], gpus=False,
        )  # fmt: skip

    return words


def test_words_that_start_python_in_the_image(start):
    words = start()
    assert words[1:5] == ("-m", "shardline.environments.container", "podman", "run")
    assert {"--env=NCCL_DEBUG", "--env=GLOO_SOCKET_IFNAME", "--env=OMP_NUM_THREADS"} < set(words)
    assert words[-4:] == ("python", "-m", "shardline.launch.exit_on_stdin_close", "python")
    assert "docker" in start(tool="docker"), "what built it has it"


@pytest.mark.parametrize("part", ["lock", "code"])
def test_an_image_of_another_lock_or_code_is_refused(start, part):
    with pytest.raises(
        LaunchError, match=f"built from {part} 999999999999, but .* delete .*image.json"
    ):
        start(**{part: "9" * 64})


def test_apptainer_needs_a_name_for_the_image(start, monkeypatch):
    monkeypatch.setattr(container, "find_tool", lambda *_: "apptainer")
    with pytest.raises(ConfigError, match=r"run_with=apptainer, .*set image.push, or build a .sif"):
        start(reference=None)


@pytest.mark.parametrize("key", ["build_args", "push_args", "run_args"])
def test_passwords_do_not_belong_into_settings(key):
    with pytest.raises(
        ConfigError, match=rf"image.{key} contains --creds, .*podman login"
    ) as error:
        image.check_no_login(Image(**{key: ["--creds=me:s3cret"]}))
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("buildah", "image.tool=buildah, but there is no buildah in PATH"),
     ("auto", "image.tool=auto, but there is no podman or docker or buildah in PATH")],
)  # fmt: skip
def test_a_tool_that_is_not_here(monkeypatch, tmp_path, wanted, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=message):
        find_tool("image.tool", wanted, image.BUILDERS)
