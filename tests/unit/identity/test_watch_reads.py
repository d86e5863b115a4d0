"""Which of the files that a process reads are reported, and by whom."""

import ctypes
import json
import mmap
import os
import pickle
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.config.resolved import DatasetPlace
from shardline.errors import ConfigError
from shardline.identity import watch_reads
from shardline.identity.watch_reads import (
    CountedFiles,
    WatchedReads,
    counted,
    path_of,
    shown,
    write_counted,
)
from shardline.training import script
from shardline.training.rank_task import write_task
from tests.support import compiled_files
from tests.support.compiled_files import FILES
from tests.support.rank_tasks import rank_runtime, rank_task
from tests.support.workspace import REPOSITORY
from tests.unit.training.test_script_runs import ALONE, SPEC

# --- which path is reported -----------------------------------------------------------------------

NAMES = st.sampled_from(
    [
        "a",
        "b",
        "a.pyc",
        "-",
        " ",
        "a\nb",
        "ä",
        "a\u202eb",
        "x\udcff",
        "...",
        "~",
        "*",
        "site-packages",
    ]
)
PLACES = st.lists(NAMES, min_size=1, max_size=3)
NUMBERS = count()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reads")


def make(root: Path, places: list[list[str]]) -> list[Path]:
    """Make files at these places; what lies below another file is left out."""
    made = []
    for names in places:
        path = root.joinpath(*names)
        if not path.exists() and not any(parent.is_file() for parent in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            made.append(path)
    return made


def respelled(draw: Callable, path: Path, root: Path) -> str | bytes | Path:
    """Return another spelling of an absolute path."""
    link = root.parent / f"{root.name}-link"
    if not link.is_symlink():
        link.symlink_to(root)
    spelling = draw(
        st.sampled_from([
            str(path),
            str(link / path.relative_to(root)),
            f"{path.parent}/../{path.parent.name}//./{path.name}",
            f"{link}/../{root.name}/{path.relative_to(root)}",
            os.path.relpath(path),
        ])
    )  # fmt: skip
    return draw(st.sampled_from([spelling, os.fsencode(spelling), Path(spelling)]))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_path_counts_by_the_file_that_it_leads_to(place, data):
    root = place / str(next(NUMBERS))
    files = make(root, data.draw(st.lists(PLACES, min_size=1, max_size=6), label="files"))
    some = st.lists(st.sampled_from(files), max_size=3)
    known, folders = data.draw(some), {path.parent for path in data.draw(some)}
    left_alone = {folder: data.draw(st.booleans()) for folder in sorted(folders)}
    tested = CountedFiles(
        files=frozenset(map(str, known)), folders={str(k): v for k, v in left_alone.items()}
    )
    for path in files:
        watch = WatchedReads(known=tested, mode="warn")
        watch.hear("open", (respelled(data.draw, path, root), "r", os.O_RDONLY))
        around = [
            left_alone.get(folder, True)
            for folder in (path, *path.parents)
            if folder in left_alone or folder.name == "site-packages"
        ]
        is_silent = path in known or (around[0] if around else False)
        assert list(watch.found) == ([] if is_silent else [str(path)])


def test_a_link_out_of_a_folder_that_is_left_alone_is_followed(tmp_path):
    outside = tmp_path / "outside.bin"
    outside.touch()
    (tmp_path / "own").mkdir()
    (tmp_path / "own/link").symlink_to(outside)
    assert not CountedFiles(files=set(), folders={f"{tmp_path}/own": True}).holds(
        f"{tmp_path}/own/link"
    )
    assert CountedFiles(files={f"{tmp_path}/own/link"}, folders={}).holds(str(outside))


def test_what_belongs_to_the_machine_or_the_project_itself_is_left_alone(tmp_path):
    known = counted(tmp_path, ["conf/../vocab.txt", "/data/a.csv"], ["store/work/run"])
    silent = [
        "/proc/self/status", "/etc/hosts", os.__file__, pytest.__file__, watch_reads.__file__,
        f"{tmp_path}/vocab.txt", "/data/a.csv", f"{tmp_path}/store/work/run/x/y",
        f"{tmp_path}/.git/HEAD", f"{tmp_path}/logs/x", f"{tempfile.gettempdir()}/elsewhere-in-tmp",
    ]  # fmt: skip
    assert [path for path in silent if not known.holds(path)] == []
    told = ["/data/b.csv", f"{tmp_path}/models.py", f"{tmp_path}/store/work/other", "/home/u/w.pt"]
    assert [path for path in told if known.holds(path)] == []


# A folder of a user's that the rules for the machine's and the packages' folders would take for one of theirs.
TAKEN = ("tmp", "tmp/a folder", "site-packages", "home/.config")


@pytest.mark.parametrize("above", TAKEN)
def test_a_project_and_what_lies_around_it_count_wherever_they_lie(tmp_path, monkeypatch, above):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: f"{tmp_path}/tmp")
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    project = tmp_path / above / "project"
    (tmp_path / above).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / above)
    for workdir in (project, tmp_path / "link/project"):
        known = counted(workdir, [], ["store"])
        told = [f"{project}/models.py", f"{project}/tmp/x", f"{tmp_path}/link/project/x"]
        told += [] if above != "tmp/a folder" else [f"{project.parent}/weights.pt"]
        assert [path for path in told if known.holds(path)] == []
        silent = [f"{project}/store/x", f"{tmp_path}/tmp/x", f"{tmp_path}/home/.config/x"]
        assert [path for path in silent if not known.holds(path)] == []


@pytest.mark.parametrize("above", TAKEN)
def test_the_line_that_reads_is_named_wherever_the_code_lies(tmp_path, monkeypatch, above):
    """Code lies beside the project where a team shares it, or where a test does."""
    monkeypatch.setattr(tempfile, "gettempdir", lambda: f"{tmp_path}/tmp")
    monkeypatch.setenv("HOME", f"{tmp_path}/home")
    project = tmp_path / above / "project"
    project.mkdir(parents=True)
    (project / "vocab.txt").touch()
    for folder in (project, tmp_path / "tmp"):
        folder.mkdir(exist_ok=True)
        code = compile(
            "from pathlib import Path\nPath(vocab).read_text()", f"{folder}/net.py", "exec"
        )
        watch = WatchedReads(known=counted(project, [], []), mode="warn")
        watch_reads.start(watch)
        try:
            exec(code, {"vocab": project / "vocab.txt"})
        finally:
            watch_reads.start(None)
        assert watch.found == {f"{project}/vocab.txt": f"{folder}/net.py, line 2"}


@pytest.mark.parametrize("argument", [0, 7, None, object()])
def test_what_is_no_path_is_passed_over(argument):
    assert path_of(argument) == ""


@settings(deadline=None)
@given(st.text(min_size=1, max_size=20))
def test_a_shown_path_is_one_line(name):
    assert shown(f"/data/{name}").isprintable()


# --- the hook -------------------------------------------------------------------------------------


@pytest.fixture
def watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., WatchedReads]]:
    """Watch this process's reads in an empty project."""
    monkeypatch.chdir(tmp_path)

    def begin(mode: str = "warn", *files: str) -> WatchedReads:
        watch = WatchedReads(known=counted(tmp_path, files, []), mode=mode)
        watch_reads.start(watch)
        return watch

    yield begin
    watch_reads.start(None)


def names(watch: WatchedReads) -> list[str]:
    return [Path(path).name for path in watch.found]


@pytest.mark.parametrize(
    ("mode", "is_told"),
    [
        ("r", True),
        ("rb", True),
        ("r+", True),
        ("a+", True),
        ("w", False),
        ("w+", False),
        ("a", False),
    ],
)
def test_a_file_that_was_there_is_told_where_it_can_be_read(watched, mode, is_told):
    Path("old").write_text("1")
    watch = watched()
    Path("old").open(mode).close()
    assert names(watch) == (["old"] if is_told else [])


def test_a_file_of_ones_own_is_none_that_is_read_and_an_appended_one_is(watched):
    for name in ("appended", "moved-over"):
        Path(name).write_text("1")
    watch = watched()
    for mode in ("w", "x", "a", "w+"):
        Path(mode).open(mode).close()
        Path(mode).read_text()
    Path("w").rename("moved-over")
    Path("moved-over").read_text()
    for _ in range(2):
        sqlite3.connect("new.db").close()
    with Path("appended").open("a") as file:
        file.write("2")
    assert names(watch) == []
    Path("appended").read_text()
    assert names(watch) == ["appended"]


def test_what_is_missing_a_folder_or_read_by_a_descriptor_is_not_told(watched):
    Path("one").write_text("1")
    watch = watched("warn", "one")
    with pytest.raises(FileNotFoundError):
        Path("missing").read_text()
    os.close(os.open(".", os.O_RDONLY))
    with Path("one").open() as file, os.fdopen(file.fileno(), closefd=False) as again:
        again.read()
    list(Path().iterdir())
    assert names(watch) == []


def test_a_module_that_is_imported_by_its_path_is_told_by_its_source(watched, monkeypatch):
    Path("plugin.py").write_text("VALUE = 1\n")
    subprocess.run([sys.executable, "-m", "compileall", "-q", "."], check=True)
    monkeypatch.syspath_prepend(".")
    watch = watched()
    try:
        __import__("plugin")
    finally:
        sys.modules.pop("plugin", None)
    assert names(watch) == ["plugin.py"]
    watch = watched("warn", "plugin.py")
    __import__("plugin")
    sys.modules.pop("plugin")
    assert names(watch) == []


def test_an_error_comes_with_the_first_read_and_again_where_it_was_caught(watched):
    Path("vocab.txt").write_text("1")
    watched("error")
    line = sys._getframe().f_lineno + 2
    with pytest.raises(ConfigError) as error:
        Path("vocab.txt").read_text()
    assert str(error.value) == (
        "runtime.watch_reads=error: 1 file was read that no identity contains: vocab.txt "
        f"(read by {__file__}, line {line}); "
        "list it in the column code_files, or in source.files of the dataset whose class reads it; or read it by a "
        "literal path beside its module, or set runtime.watch_reads=warn to continue anyway"
    )
    with pytest.raises(ConfigError, match="vocab.txt"):
        watch_reads.check()
    with pytest.raises(ConfigError, match="vocab.txt"):
        watch_reads.finish()


def test_a_warning_names_ten_files_and_no_secret(watched, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cr3t-s3cr3t-s3cr3t")
    for number in range(12):
        Path(f"s3cr3t-s3cr3t-s3cr3t-{number}").touch()
    watched()
    for number in range(12):
        Path(f"s3cr3t-s3cr3t-s3cr3t-{number}").read_text()
    warning = watch_reads.finish({"/elsewhere": "net.py, line 3"})
    assert warning.startswith(
        "runtime.watch_reads=warn: 13 files were read that no identity contains: /elsewhere ("
    )
    assert "3 more; list it in" in warning
    assert "***-8" in warning
    assert "***-9" not in warning
    assert "s3cr3t" not in warning
    assert watch_reads.finish() == ""


# --- compiled code --------------------------------------------------------------------------------


def test_reads_by_compiled_code_are_told_whenever_the_library_was_imported(watched):
    for name, (write, _) in FILES.items():
        write(name)
    command = [sys.executable, "-m", "tests.support.compiled_files"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    fresh = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(fresh.stdout) == {name: [name] for name in FILES}
    for name, (_, read) in FILES.items():  # imported here before the watch begins
        watch = watched()
        read(name)
        assert names(watch) == [name]
        (reader,) = watch.found.values()
        assert reader.startswith(f"{compiled_files.__file__}, line ")


def test_a_read_by_compiled_code_fails_under_error_and_what_counts_is_read(watched):
    write, read = FILES["safetensors.torch.load_file"]
    write("w.safetensors")
    watched("error")
    with pytest.raises(ConfigError, match=r"w\.safetensors \(read by "):
        read("w.safetensors")
    assert names(watched("error", "w.safetensors")) == []
    read("w.safetensors")


def test_what_is_wrapped_is_still_the_class(watched):
    watched()
    from pyarrow.parquet import read_table
    from safetensors import safe_open
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    made = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    assert isinstance(made, Tokenizer)
    assert Tokenizer.from_str(made.to_str()).get_vocab_size() == 1
    assert isinstance(None, Tokenizer | None)
    assert not isinstance(made, safe_open)
    assert issubclass(safe_open.__wrapped__, safe_open)
    assert pickle.loads(pickle.dumps(read_table)) is read_table


def test_a_file_that_stays_open_or_mapped_is_told_at_the_constructors_end(watched):
    for name in ("mapped", "opened", "before", "written"):
        Path(name).write_text("1234")
    libc, before = ctypes.CDLL(None), os.open("before", os.O_RDONLY)
    watch = watched()
    kept = libc.open(b"opened", os.O_RDONLY), libc.open(b"written", os.O_WRONLY)
    number = libc.open(b"mapped", os.O_RDONLY)
    mapped = mmap.mmap(number, 4, prot=mmap.PROT_READ)
    os.close(number)
    assert names(watch) == []
    watch_reads.look()
    assert sorted(names(watch)) == ["mapped", "opened"]
    mapped.close()
    for one in (before, *kept):
        os.close(one)


# --- processes ------------------------------------------------------------------------------------

CHILDREN = """
import multiprocessing, threading
from pathlib import Path

def read(name):
    Path(name).read_text()

if __name__ == "__main__":
    threads = threading.Thread(target=read, args=["thread.txt"])
    threads.start(); threads.join()
    child = multiprocessing.get_context("fork").Process(target=read, args=["forked.txt"])
    child.start(); child.join()
    read("known.txt")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script's project, and what its ranks are told."""
    monkeypatch.chdir(tmp_path)
    for name in ("known", "thread", "forked"):
        Path(f"{name}.txt").touch()
    script.prepare(tmp_path / "work")
    file = tmp_path / "work" / watch_reads.COUNTED_FILE
    write_counted(file, tmp_path, [tmp_path / "known.txt", tmp_path / "train.py"], [])
    return tmp_path


def run(project: Path, mode: str, text: str) -> None:
    (project / "train.py").write_text(text)
    paths = {"run_json": project, "dataset": DatasetPlace(manifest=project, shards=project)}
    watching = watch_reads.command_of_script(mode, project / "work")
    given = "script: train.py --lr 0.1"
    script.run_script(given, ALONE, **paths, work=project / "work", python_args=watching)


def test_a_script_its_threads_and_what_it_forks_are_watched(project, capfd):
    run(project, "warn", CHILDREN)
    lines = [line for line in capfd.readouterr().err.splitlines() if "watch_reads" in line]
    assert len(lines) == 2
    assert "forked.txt (read by train.py, line 6)" in lines[0]
    assert "thread.txt (read by train.py, line 6)" in lines[1]
    assert "known.txt" not in "".join(lines)


def test_a_process_that_a_rank_spawns_is_watched(project):
    files = {name: Path(name) for name in ("run_json", "manifest", "shards")}
    spec = rank_task(project, **files, run=SPEC, runtime=rank_runtime(watch_reads="warn"))
    write_task(project / "rank.json", spec)
    spawned = "import runpy; runpy.run_module('shardline.training.rank', run_name='__mp_main__')\n"
    (project / "child.py").write_text(spawned + "open('known.txt'); open('forked.txt')")
    done = subprocess.run(
        [sys.executable, "child.py", "rank.json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "forked.txt (read by child.py, line 2)" in done.stderr
    assert "known.txt" not in done.stderr


def test_a_script_runs_as_without_a_watch(project, capfd):
    text = "import sys; print(__name__, sys.argv[1:], sys.path[0], __file__)"
    for mode in ("off", "warn"):
        run(project, mode, text)
    assert (
        capfd.readouterr().out.splitlines()
        == [f"__main__ ['--lr', '0.1'] {project} {project}/train.py"] * 2
    )


@pytest.mark.parametrize(
    "text",
    [
        "open('thread.txt')",
        "import sys\ntry:\n    open('thread.txt')\nexcept Exception:\n    sys.exit()",
    ],
)
def test_a_script_that_reads_such_a_file_fails_for_good(project, text):
    with pytest.raises(ConfigError, match=r"watch_reads=error: 1 file was read .* thread.txt"):
        run(project, "error", text)
