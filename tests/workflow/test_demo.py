"""`make demo`: a kill, the same bits, an edit that counts and one that does not; and nothing of it stays."""

import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.workspace import REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.rotating("demo")]

DEMO = ["env", "--default-signal=INT", sys.executable, str(REPOSITORY / "examples/demo.py")]


def sections(shown: str) -> list[str]:
    """Return what is shown below each numbered explanation."""
    return re.split(r"^\d\. ", shown, flags=re.MULTILINE)[1:]


def test_a_killed_training_has_the_bits_of_another_and_only_code_counts(tmp_path):
    done = subprocess.run(
        DEMO, env={**os.environ, "TMPDIR": str(tmp_path)}, text=True, capture_output=True,
        check=False, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    _, killed, compared, comment, code = sections(done.stdout)
    assert re.search(r"killing both ranks of `net` \(SIGKILL to processes \d+ and \d+\)\n", killed)
    assert re.search(r"attempt 2 started at step [1-9]\d*", killed)
    assert "run the same command again" not in killed
    assert killed.index("It was this demo.") > killed.index("by hand, out of memory")
    assert killed.index("`partly` means trained, not evaluated") > killed.index("net     partly")
    for text in (killed, compared):
        assert text.index("nothing is printed") < text.index("  $ ")
    digests = re.findall(r"sha256 ([0-9a-f]{64})\n", compared)
    assert len(digests) == 2
    assert len(set(digests)) == 1
    assert "The weights are bit-identical." in compared
    assert "nothing to do" in comment
    assert not re.search(r"Training|Resolving", comment)
    assert "Training net" in code
    assert "2 jobs to run" in code
    assert not re.search(r"(Training|Resolving) linear|Cutting|Sealing", code)
    assert "code of the model: mypkg.models: Net.__init__ changed" in code
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_all_that_it_started(tmp_path):
    log = tmp_path / "log"
    (tmp_path / "tmp").mkdir()
    with log.open("w") as file:
        demo = subprocess.Popen(
            DEMO, env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PYTHONUNBUFFERED": "1"},
            stdout=file, stderr=file,
        )  # fmt: skip
    end = time.monotonic() + 300
    while "Training net" not in log.read_text():
        assert demo.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    tree = psutil.Process(demo.pid).children(recursive=True)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(120) != 0
    psutil.wait_procs(tree, timeout=60)
    assert not [one for one in tree if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert list((tmp_path / "tmp").iterdir()) == []
