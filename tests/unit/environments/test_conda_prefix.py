"""Conda environments solved, pinned and made for real, from a channel that the tests build."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from shardline.config.scripts import load_environment
from shardline.config.settings.run_settings import Environment
from shardline.environments import prefix as prefix_module
from shardline.environments.prefix import make_prefix, prefix_of
from shardline.environments.solve import solve
from shardline.errors import ConfigError, DataError
from shardline.identity.code_index import LIBRARY
from shardline.identity.interpreter import ask
from shardline.identity.package_lock import Pin, parse_pin, read_pins
from shardline.records.base import encode
from tests.support.conda_channel import PYTHON, SITE, CondaChannel

SPECS = [f"python ={PYTHON}", "tool ==2.0"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> CondaChannel:
    channel = CondaChannel(tmp_path_factory.mktemp("built") / "channel")
    channel.add_python()
    program = "import tool\nprint('tool', tool.VERSION)\n"
    depends = [f"python {PYTHON}.*", "lib >=1,<3", "__glibc >=2.17"]
    files = {f"{SITE}/tool.py": "from lib import VERSION\n", f"{SITE}/__main__tool.py": program}
    channel.add("tool", "2.0", depends=depends, files=files)
    channel.add("tool", "3.0", depends=["python <3", "lib >=4"])
    for version in ("1.0", "2.0", "4.0"):
        text = {"site-packages/lib.py": f"VERSION = '{version}'\n"}
        channel.add("lib", version, files=text, build="pyh_0", subdir="noarch")
    channel.index()
    return channel


@pytest.fixture
def channel(built: CondaChannel, tmp_path: Path) -> CondaChannel:
    """A copy that a test may damage."""
    channel = CondaChannel(tmp_path / "channel")
    shutil.copytree(built.path, channel.path, dirs_exist_ok=True)
    return channel


def solved(channel: CondaChannel, *specs: str, glibc: str = "2.28") -> list[Pin]:
    virtual = {"__glibc": glibc}
    return solve(
        specs or SPECS, channels=[channel.url], virtual_packages=virtual, what="envs/x.yaml"
    )


def run(prefix: str, *arguments: str) -> str:
    command = [f"{prefix}/bin/python", *arguments]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout.strip()


def test_a_solution_is_pinned_installed_and_runs(channel, tmp_path):
    pins = solved(channel)
    assert {pin.name: (pin.version, pin.subdir) for pin in pins} == {
        "python": (f"{PYTHON}.99", "linux-64"),
        "tool": ("2.0", "linux-64"),
        "lib": ("2.0", "noarch"),
    }
    made = make_prefix(tmp_path / "envs", "train", pins)
    prefix = Path(made.prefix)
    assert prefix == prefix_of(tmp_path / "envs", "train", pins)
    assert run(made.prefix, "-c", "import tool; print(tool.VERSION)") == "2.0"
    assert run(made.prefix, "-c", "import shardline; print(shardline.__file__)").startswith(
        str(LIBRARY)
    )
    # a file that holds the prefix's path holds that of its last place, not of where it was built
    where = subprocess.run([prefix / "bin" / "where"], text=True, capture_output=True, check=True)
    assert where.stdout.strip() == str(prefix)
    assert [*map(encode, made.packages)] == sorted(
        (
            {
                "name": pin.name, "version": pin.version, "build": pin.build,
                "subdir": pin.subdir, "sha256": pin.sha256, "url": pin.url,
            }
            for pin in pins
        ),
        key=lambda package: package["name"],
    )  # fmt: skip
    assert (made.platform, made.python) == ("linux-64", f"{PYTHON}.99")
    assert made.made_by["py-rattler"]


def test_it_is_made_once_and_named_by_its_packages_alone(channel, tmp_path):
    pins = solved(channel)
    made = make_prefix(tmp_path / "envs", "train", pins)
    mark = Path(made.prefix) / "mark"
    mark.touch()
    assert make_prefix(tmp_path / "envs", "train", list(reversed(pins))) == made
    assert mark.exists()
    other = make_prefix(tmp_path / "envs", "train", solved(channel, SPECS[0], "lib ==1.0"))
    assert other.prefix != made.prefix
    assert other.digest != made.digest


def test_an_environment_of_a_script_is_what_its_pin_file_says_and_needs_no_shardline(
    channel, tmp_path
):
    (tmp_path / "own.txt").write_text(
        "@EXPLICIT\n" + "\n".join(pin.line for pin in solved(channel))
    )
    environment = load_environment(Environment(conda="own.txt"), "row", tmp_path)
    assert environment.counted == {
        "kind": "conda", "python": PYTHON,
        "packages": {"lib": "2.0 pyh_0", "python": f"{PYTHON}.99 h1_0", "tool": "2.0 h1_0"},
    }  # fmt: skip
    pins = read_pins(tmp_path / "own.txt")
    made = make_prefix(tmp_path / "envs", "conda", pins, has_shardline=False)
    assert Path(made.prefix) == tmp_path / "envs" / environment.folder_name
    found = ask(Path(made.prefix) / "bin/python", "here")
    assert found.lacks(["tool", "lib", "shardline"]) == ["shardline"]


JOB = """
import sys
from pathlib import Path
from shardline.identity.package_lock import read_pins
from shardline.environments.prefix import make_prefix
print("ready", flush=True)
sys.stdin.readline()
make_prefix(Path(sys.argv[1]), "train", read_pins(Path(sys.argv[2])))
"""


def pins_in(file: Path, pins: list[Pin]) -> str:
    file.write_text("@EXPLICIT\n" + "".join(f"{pin.line}\n" for pin in pins))
    return str(file)


def test_two_jobs_at_once_make_one(channel, tmp_path):
    pins, folder = solved(channel), tmp_path / "envs"
    command = [sys.executable, "-c", JOB, str(folder), pins_in(tmp_path / "pins.txt", pins)]
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    jobs = [subprocess.Popen(command, stderr=subprocess.PIPE, **piped) for _ in range(3)]
    for job in jobs:
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    ends = [(job.communicate(timeout=300)[1], job.returncode) for job in jobs]
    assert ends == [("", 0)] * 3
    (prefix,) = (path for path in folder.glob("*-*") if not path.name.startswith("."))
    assert run(str(prefix), "-c", "import tool; print(tool.VERSION)") == "2.0"


KILLED = """
import os, signal, sys
from pathlib import Path
from shardline.environments import prefix
from shardline.identity.package_lock import read_pins
prefix._add_shardline = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
prefix.make_prefix(Path(sys.argv[1]), "train", read_pins(Path(sys.argv[2])))
"""


def test_what_a_killed_job_leaves_is_not_used(channel, tmp_path):
    pins, folder = solved(channel), tmp_path / "envs"
    file = pins_in(tmp_path / "pins.txt", pins)
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), file], check=False)
    assert done.returncode == -9
    prefix = prefix_of(folder, "train", pins)
    leftover = prefix.with_name(f".{prefix.name}.tmp")
    assert leftover.exists()
    assert not prefix.exists()
    (leftover / "of-the-killed").touch()
    make_prefix(folder, "train", pins)
    assert not leftover.exists()
    assert not (prefix / "of-the-killed").exists()


def test_no_solution_is_told_in_the_solvers_words(channel):
    with pytest.raises(ConfigError) as caught:
        solved(channel, f"python ={PYTHON}", "tool ==3.0")
    said = str(caught.value)
    assert said.startswith(f"envs/x.yaml has no solution on {channel.url}:")
    assert "tool ==3.0 cannot be installed because there are no viable options" in said
    assert "python <3, for which no candidates were found" in said
    assert "make lock" in said
    with pytest.raises(ConfigError, match="__glibc >=2.17"):
        solved(channel, glibc="2.12")


@pytest.mark.parametrize(
    ("channels", "message"),
    [
        (["http://127.0.0.1:9/nowhere"], "conda.channels=http://127.0.0.1:9/nowhere cannot be read .*mirror"),
        (["file:///no/such/folder"], "conda.channels=file:///no/such/folder cannot be read .*file:///no/such"),
        (["http://me:pw@host/x"], "conda.channels: http://host/x was given with a password .*RATTLER_AUTH_FILE"),
        (["https://host/t/abc/x"], "conda.channels: https://host/x was given with a password"),
    ],
)  # fmt: skip
def test_a_channel_that_cannot_be_read(channels, message):
    with pytest.raises(ConfigError, match=message) as caught:
        solve(SPECS, channels=channels, virtual_packages={}, what="envs/x.yaml")
    assert "pw@" not in str(caught.value)
    assert "abc" not in str(caught.value)


def test_a_package_that_changed_since_it_was_pinned(channel, tmp_path):
    pins = solved(channel)
    changed = {"site-packages/lib.py": "VERSION = 'evil'\n"}
    channel.add("lib", "2.0", files=changed, build="pyh_0", subdir="noarch")
    with pytest.raises(
        DataError, match=r"lib-2.0-pyh_0.conda has SHA-256 .*, expected .*write the pins"
    ):
        make_prefix(tmp_path / "envs", "train", pins)
    assert not prefix_of(tmp_path / "envs", "train", pins).exists()


def test_a_package_that_is_gone(channel, tmp_path):
    pins = solved(channel)
    (channel.path / "noarch" / "lib-2.0-pyh_0.conda").unlink()
    with pytest.raises(DataError, match="lib-2.0-pyh_0.conda cannot be read .*No such file"):
        make_prefix(tmp_path / "envs", "train", pins)


class Handler(SimpleHTTPRequestHandler):
    """Serves a channel, to those who bring the token if there is one."""

    token = ""

    def send_head(self):
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.send_error(401)
            return None
        return super().send_head()

    def log_message(self, *words):
        pass


@pytest.fixture
def serve(channel: CondaChannel) -> Iterator[Callable[..., str]]:
    servers = []

    def start(token: str = "") -> str:
        handler = partial(type("With", (Handler,), {"token": token}), directory=str(channel.path))
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_packages_are_fetched_from_a_server_once(serve, tmp_path, monkeypatch):
    url, folder = serve(), tmp_path / "envs"
    pins = solve(SPECS, channels=[url], virtual_packages={"__glibc": "2.28"}, what="x")
    missing = parse_pin(next(pin.line for pin in pins if pin.name == "lib").replace("2.0", "9.0"))
    with pytest.raises(DataError, match=r"lib-9.0-pyh_0.conda cannot be fetched \(.*404.*mirror"):
        make_prefix(folder, "train", [*pins, missing])
    made = make_prefix(folder, "train", pins)
    assert {package.url.rpartition("/")[0] for package in made.packages} == {
        f"{url}/linux-64",
        f"{url}/noarch",
    }
    monkeypatch.setattr(prefix_module, "client", lambda: pytest.fail("offline"))
    assert make_prefix(folder, "train", pins) == made


def test_a_mirror_is_asked_and_not_pinned(serve, tmp_path, monkeypatch):
    named = "https://channel.invalid/x"
    (tmp_path / ".rattler").mkdir()
    (tmp_path / ".rattler" / "config.toml").write_text(f'[mirrors]\n"{named}" = ["{serve()}"]\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    pins = solve(SPECS, channels=[named], virtual_packages={"__glibc": "2.28"}, what="x")
    assert {pin.url.rpartition("/")[0] for pin in pins} == {f"{named}/linux-64", f"{named}/noarch"}
    made = make_prefix(tmp_path / "envs", "train", pins)
    assert run(made.prefix, "-c", "import tool; print(tool.VERSION)") == "2.0"


def test_a_login_is_used_and_told_nowhere(serve, tmp_path, monkeypatch):
    url = serve("s3cret")
    with pytest.raises(ConfigError, match="401"):
        solve(SPECS, channels=[url], virtual_packages={"__glibc": "2.28"}, what="x")
    (tmp_path / "logins.json").write_text('{"127.0.0.1": {"BearerToken": "s3cret"}}')
    monkeypatch.setenv("RATTLER_AUTH_FILE", str(tmp_path / "logins.json"))
    pins = solve(SPECS, channels=[url], virtual_packages={"__glibc": "2.28"}, what="x")
    made = make_prefix(tmp_path / "envs", "train", pins)
    assert run(made.prefix, "-c", "import tool; print(tool.VERSION)") == "2.0"
    assert "s3cret" not in json.dumps([encode(made), [pin.line for pin in pins]])


def test_a_prefix_that_somebody_changed(channel, tmp_path):
    pins = solved(channel)
    made = make_prefix(tmp_path / "envs", "train", pins)
    (file,) = Path(made.prefix).glob("conda-meta/lib-*.json")
    record = json.loads(file.read_text())
    file.unlink()  # a package's file may have as many names as prefixes
    file.write_text(json.dumps({**record, "version": "4.0"}))
    with pytest.raises(DataError, match=r"differs from its pins \(lib\).*delete it"):
        make_prefix(tmp_path / "envs", "train", pins)


def test_a_python_that_does_not_start(channel, tmp_path):
    broken = {"bin/python": "#!/bin/sh\necho 'version GLIBC_2.99 not found' >&2\nexit 1\n"}
    channel.add("python", f"{PYTHON}.99", files=broken)
    channel.index()
    pins = solved(channel, SPECS[0])
    with pytest.raises(DataError, match="does not start .*GLIBC_2.99 not found.*virtual_packages"):
        make_prefix(tmp_path / "envs", "train", pins)
    with pytest.raises(ConfigError, match="the pins of train contain no python"):
        make_prefix(tmp_path / "envs", "train", [pin for pin in pins if pin.name != "python"])
