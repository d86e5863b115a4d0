"""What Lightning keeps private and Shardline relies on, at the newest version that the index has."""

import os
import subprocess
import sys
from importlib.metadata import distributions

import pytest

from shardline.core.one_lightning import DISTRIBUTIONS
from tests.support.lightning_packages import run_tests_with


@pytest.mark.rotating
@pytest.mark.parametrize("package", DISTRIBUTIONS)
def test_the_newest_version_has_the_private_parts(package, tmp_path, record_property):
    folder, name = tmp_path / "newest", DISTRIBUTIONS[package]
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--upgrade",
        "--target",
        str(folder),
    ]
    subprocess.run([*command, f"{name}>=2.6,!=2.6.2,!=2.6.3"], env=dict(os.environ), check=True)
    (found,) = (one for one in distributions(path=[str(folder)]) if one.name == name)
    record_property("version", found.version)
    assert found.version in run_tests_with(
        package,
        "tests/unit/core/test_lightning_compat.py",
        "-s",
        "-k",
        "not the_lock_has",
        newer=folder,
    )
