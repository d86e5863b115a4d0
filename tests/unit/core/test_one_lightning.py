"""One copy of Lightning, whichever package is imported, and under the names of both."""

import subprocess
import sys

import pytest

from shardline.core.one_lightning import check_version, keep
from shardline.errors import ConfigError
from tests.support.lightning_packages import run_tests_with

PROGRAM = """
import collections, importlib, logging, multiprocessing, sys
from shardline.core.one_lightning import keep, loaded

if {kept} is not None:
    assert keep({kept}) == ""
for name in {names}:
    importlib.import_module(name)

import lightning, lightning.fabric, lightning.pytorch as new
import lightning_fabric, pytorch_lightning as old
import pytorch_lightning.__version__, lightning_fabric.__about__
from lightning.pytorch.callbacks.lr_monitor import LearningRateMonitor
from pytorch_lightning.callbacks import LearningRateMonitor as OldMonitor

assert loaded() == "{expected}"
assert new is old and lightning.fabric is lightning_fabric
assert old.__name__ == ("lightning.pytorch" if loaded() == "lightning" else "pytorch_lightning")
assert lightning.LightningModule is old.LightningModule and LearningRateMonitor is OldMonitor
assert old.__version__ == lightning.__version__ and old.__version__.startswith("2.")
assert logging.getLogger(old.__name__).handlers  # loggers have the names of the loaded copy
try:
    import pytorch_lightning.nothing
except ModuleNotFoundError:
    pass
modules = {{id(one): one for one in list(sys.modules.values()) if hasattr(one, "__spec__")}}.values()
ours = [one for one in modules if one.__name__.startswith(("lightning.", "pytorch_lightning", "lightning_fabric"))]
assert all(one.__spec__ is None or one.__spec__.name == one.__name__ for one in ours)
files = collections.Counter(one.__file__ for one in ours if getattr(one, "__file__", None))
roots = {{file.partition("site-packages/")[2].split("/")[0] for file in files}} - {{"lightning"}}
assert set(files.values()) == {{1}}
assert bool(roots) == (loaded() == "pytorch_lightning"), roots
"""


@pytest.mark.parametrize(
    ("kept", "names", "expected"),
    [
        (["lightning"], ["pytorch_lightning.callbacks"], "lightning"),
        (["pytorch_lightning"], ["lightning.pytorch.callbacks"], "pytorch_lightning"),
        *(
            pytest.param([], [first], expected, marks=pytest.mark.rotating)
            for first, expected in {
                "lightning.fabric.utilities.seed": "lightning",
                "lightning_fabric": "pytorch_lightning",
            }.items()
        ),
        # a program that is no rank
        pytest.param(
            None, ["lightning", "shardline.models"], "lightning", marks=pytest.mark.rotating
        ),
    ],
)
def test_one_copy_has_the_names_of_both_packages(kept, names, expected):
    program = PROGRAM.format(kept=kept, names=names, expected=expected)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("package", "version", "message"),
    [
        (
            "lightning", "2.5.6",
            "lightning 2.5.6 is installed, expected 2.6 or newer; use a newer version",
        ),
        (
            "pytorch_lightning", "1.9",
            "pytorch-lightning 1.9 is installed, expected 2.6 or newer; use a newer version",
        ),
        (
            "lightning", "2.6.3",
            "lightning 2.6.3 is installed, but this version was withdrawn, since it contained malicious code; use "
            "another version, and replace the credentials on machines that installed it",
        ),
    ],
)  # fmt: skip
def test_versions_that_are_too_old_or_malicious_are_rejected(package, version, message):
    with pytest.raises(ConfigError) as error:
        check_version(package, version, "installed")
    assert str(error.value) == message
    check_version(package, "2.6.6", "installed")
    check_version(package, "@ https://example.org/lightning.whl", "installed")


def test_a_copy_that_is_loaded_stays_and_code_that_imports_both_gets_a_line():
    import pytorch_lightning

    other = (
        "pytorch_lightning" if pytorch_lightning.__name__ == "lightning.pytorch" else "lightning"
    )
    line = keep([other, "lightning" if other == "pytorch_lightning" else "pytorch_lightning"])
    kept = "lightning" if other == "pytorch_lightning" else "pytorch-lightning"
    assert line.endswith(f"one copy of Lightning is loaded, of the package {kept}")
    assert keep([other]) == ""


def test_private_parts_and_data_modules_are_those_of_both_packages():
    files = ("tests/unit/core/test_lightning_compat.py", "tests/unit/training/test_python_check.py")
    assert " passed" in run_tests_with("lightning", *files)
