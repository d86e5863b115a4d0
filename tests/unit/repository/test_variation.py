"""What `.ci/variation.py` chooses by the commit, and the environment that it makes in another folder."""

import os
import runpy
import subprocess
import sys

import pytest

from tests.support.workspace import REPOSITORY

VARIATION = REPOSITORY / ".ci/variation.py"
MODULE = runpy.run_path(str(VARIATION))


def name_of(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "VARIATION"}
    return subprocess.run(
        [sys.executable, str(VARIATION), "--name"], env={**inherited, **env}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_a_run_names_its_variation_and_one_may_be_asked_for():
    first, again = name_of({}).stdout, name_of({}).stdout
    assert first == again
    assert first.split()[3] in MODULE["VARIATIONS"]
    assert "variation of tests/unit: link (" in name_of({"VARIATION": "link"}).stdout
    refused = name_of({"VARIATION": "lnk"})
    assert refused.returncode != 0
    assert "VARIATION=lnk is not known; use one of plain, " in refused.stderr


@pytest.mark.parametrize("folder", ["plain", "a folder"])
def test_a_script_of_an_environment_that_was_moved_starts_its_python(tmp_path, folder):
    python = tmp_path / folder / "bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    script = python.with_name("tool")
    text = "#!/before/bin/python\nimport sys\nprint(sys.executable, *sys.argv[1:])\n"
    script.write_bytes(MODULE["moved"](text.encode(), b"/before", os.fsencode(tmp_path / folder)))
    script.chmod(0o755)
    done = subprocess.run([str(script), "a b", "c"], capture_output=True, text=True, check=True)
    assert done.stdout == f"{python} a b c\n"
