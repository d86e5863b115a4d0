"""The environment that a process runs in, held against the lock and told."""

import importlib.machinery
import importlib.metadata
import platform
import sys
from pathlib import Path

import pytest

from shardline.environments.installed import explain_differences, find_differences, observe
from shardline.errors import ConfigError
from shardline.identity import load_lock
from shardline.identity.interpreter import installed_versions, plain_versions
from shardline.identity.package_lock import normalize
from shardline.launch.device import libraries

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
NUMPY, TORCH = (importlib.metadata.version(name) for name in ("numpy", "torch"))
LOCK = f"""\
absent-everywhere==1.0 ; sys_platform == "win32" \\
    --hash=sha256:0123
    # via torch
numpy==1.0 ; python_version < "3"
    # via torch
numpy=={NUMPY} ; python_version >= "3"
    # via torch
torch[opt]=={TORCH.partition("+")[0]}  # via shardline (pyproject.toml)
"""


@pytest.fixture
def usual_finders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find distributions as a new process does.

    Packages that other tests import add finders. `importlib_metadata` also takes the search from the usual one.
    """
    usual = importlib.machinery.PathFinder
    known = [one for one in sys.meta_path if one is usual or not hasattr(one, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", known)
    search = importlib.metadata.MetadataPathFinder.find_distributions
    monkeypatch.setattr(usual, "find_distributions", search, raising=False)


@pytest.mark.usefixtures("usual_finders")
def test_versions_in_folders_of_metadata_are_those_of_importlib() -> None:
    names = {one.name for one in importlib.metadata.distributions()}
    found = plain_versions([*names, "absent-everywhere"], sys.path)
    assert {*found} == names > {"torch"}
    assert found == {name: importlib.metadata.version(name) for name in names}


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("two folders", {"net-1.dist-info/METADATA": "1", "net-2.dist-info/METADATA": "2"}),
        ("an egg", {"net-1.egg-info/PKG-INFO": "1"}),
        ("no metadata", {"net-1.dist-info/RECORD": "1"}),
    ],
)
def test_an_unusual_distribution_is_left_to_importlib(
    name: str, files: dict[str, str], tmp_path: Path
) -> None:
    for path, version in files.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(f"Name: net\nVersion: {version}\n")
    assert plain_versions(["net"], [str(tmp_path)]) == {}, name


@pytest.mark.usefixtures("usual_finders")
def test_after_an_archive_on_the_path_importlib_is_asked(tmp_path: Path) -> None:
    """An archive may contain a distribution, which then comes before those behind it."""
    archive, folder = tmp_path / "a.zip", tmp_path / "b" / "Net_Work-2.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: Net.Work\nVersion: 2.0\n")
    assert plain_versions(["net-work"], [str(archive), str(tmp_path / "b")]) == {"net-work": "2.0"}
    archive.write_bytes(b"PK")
    assert plain_versions(["net-work"], [str(archive), str(tmp_path / "b")]) == {}


def test_what_is_installed_as_it_is_locked_differs_in_nothing(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK)
    lock = load_lock(tmp_path / "lock")
    environment = lock.environment(["torch"])
    packages = environment["packages"]
    assert isinstance(packages, dict)
    requirements = lock.requirements(packages)
    assert requirements == [
        'absent-everywhere==1.0 ; sys_platform == "win32"',
        'numpy==1.0 ; python_version < "3"',
        f'numpy=={NUMPY} ; python_version >= "3"',
        f"torch[opt]=={TORCH.partition('+')[0]}",
    ]
    assert find_differences(HERE, requirements) == []
    assert explain_differences([]) == ""


def test_a_package_that_is_imported_but_not_locked_pins_nothing(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(LOCK)
    assert load_lock(tmp_path / "lock").requirements(["psutil"]) == []


def test_each_difference_is_named_with_both_versions() -> None:
    found = find_differences("3.9", ["numpy==1.0", "numpy==1.1", "torch==2.0+cu1", "absent==7"])
    assert found == [
        f"Python {HERE} runs, 3.9 is locked",
        f"numpy {NUMPY} is installed, 1.0 or 1.1 is locked",
        f"torch {TORCH} is installed, 2.0+cu1 is locked",
        "absent is not installed, 7 is locked",
    ]
    told = explain_differences(found)
    assert "; ".join(found) in told
    assert "set runtime.strict_env=warn" in told
    assert "b; and 2 more" not in explain_differences(["a", "b"])
    assert explain_differences([str(number) for number in range(12)]).count(" and 2 more") == 1


def test_what_is_observed_is_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDLINE_IMAGE_DIGEST", raising=False)
    found = observe()
    assert found.python == platform.python_version()
    assert found.packages["numpy"] == NUMPY
    assert found.packages["pytorch-lightning"]
    assert found.image is None
    assert found.conda == []


def test_a_conda_prefix_and_an_image_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta" / "zlib-1.3-h1.json").write_text("{}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("SHARDLINE_IMAGE_DIGEST", "sha256:" + 64 * "a")
    found = observe()
    assert found.conda == ["zlib-1.3-h1"]
    assert found.image == "sha256:" + 64 * "a"
    monkeypatch.delenv("SHARDLINE_IMAGE_DIGEST")
    for name, digest in (("r.io/a:1", None), (f"r.io/a@sha256:{64 * 'b'}", "sha256:" + 64 * "b")):
        monkeypatch.setenv("SNAKEMAKE_AZUREML_IMAGE", name)
        assert observe().image == digest
    monkeypatch.setenv("SHARDLINE_IMAGE_DIGEST", "latest")
    with pytest.raises(
        ConfigError, match="SHARDLINE_IMAGE_DIGEST=latest is not a digest; set the image's digest"
    ):
        observe()


def test_what_lies_below_torch_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\necho\necho Report bugs\n")
    mpirun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = libraries()
    assert found["mpi"] == "mpirun (Open MPI) 4.1.4"
    assert found["cpu"]
    assert set(found) == {"cpu", "driver", "cuda", "cudnn", "nccl", "mpi"}
    mpirun.write_text("#!/bin/sh\nexit 1\n")
    assert libraries()["mpi"] is None


def test_versions_are_those_of_importlib_also_where_metadata_is_old_or_has_lines_like_fields(
    tmp_path: Path,
) -> None:
    files = {
        "new-1.dist-info/METADATA": "Metadata-Version: 2.4\r\nName: New_One\r\nVersion: 1.0+cpu\r\n\r\nName: other\r\n",
        "old.egg-info/PKG-INFO": "Metadata-Version: 1.0\nName: old.one\nVersion: 2!3rc1\nSummary: s\n\nVersion: 9\n",
        "flat.egg-info": "Metadata-Version: 1.0\nName: flat\nVersion: 4\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, newline="")
    path = [str(tmp_path), *sys.path]
    found = reversed([*importlib.metadata.distributions(path=path)])
    assert installed_versions(path) == {normalize(one.name): one.version for one in found}
    own = installed_versions([str(tmp_path)])
    assert own == {"flat": "4", "new-one": "1.0+cpu", "old-one": "2!3rc1"}
