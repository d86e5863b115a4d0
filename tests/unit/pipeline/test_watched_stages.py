"""What the identities of a dataset and of a run hold, and so may be read without a report."""

from pathlib import Path

import pytest

from shardline.errors import ConfigError
from shardline.identity import watch_reads
from shardline.pipeline.watched import end_watch, watch, write_watched_files
from tests.support.fake_project import FakeProject

NET = "class Net:\n    layer = layers.Layer\n    def validation_step(self): pass\n"


@pytest.fixture
def net(fake: FakeProject):
    """A project with a model that imports a module and reads a file beside itself."""
    model = "from pathlib import Path\nfrom mypkg import layers\nV = (Path(__file__).parent / 'v.txt').read_text()\n"
    fake.workspace.write(
        "mypkg/models.py",
        f"{model}class Net:\n    layer = layers.Layer\n    def validation_step(self): pass\n",
    )
    fake.workspace.write("mypkg/layers.py", "class Layer:\n    pass\n")
    for name in ("mypkg/v.txt", "mypkg/plugin.py", "conf/a.yaml", "other.txt"):
        fake.workspace.write(name, "")
    fake.rows[0]["code_files"] = "conf/*"
    fake.config["runtime"] = {"watch_reads": "warn"}
    yield fake
    watch_reads.start(None)


OF_SOURCE = {"data/a.csv", "mypkg/sources.py", "my.lock"}
OF_MODEL = {"mypkg/__init__.py", "mypkg/models.py", "mypkg/layers.py", "mypkg/v.txt", "conf/a.yaml"}
OF_NONE = {"mypkg/plugin.py", "other.txt"}


def told() -> set[str]:
    """Read every file; return those that are reported."""
    for name in OF_SOURCE | OF_MODEL | OF_NONE:
        Path(name).read_bytes()
    return {str(Path(path).relative_to(Path.cwd())) for path in watch_reads.found()}


def test_a_source_may_read_its_files_and_its_code(net):
    project = net.load()
    watch(project, project.named_runs()["net"].dataset)
    assert told() - {"mypkg/__init__.py"} == OF_NONE | OF_MODEL - {"mypkg/__init__.py"}
    assert "list it in source.files" in watch_reads.finish()


def test_a_model_may_read_its_initial_weights(net):
    net.workspace.write("base.pt", "weights")
    net.rows[0]["init_from"] = "file:base.pt"
    project = net.load()
    watch(project, project.named_runs()["net"])
    Path("base.pt").read_bytes()
    assert not any("base.pt" in path for path in watch_reads.found())


def test_a_source_may_read_its_tokenizer(net):
    net.workspace.write("data/tokenizer.json", '{"model": {"vocab": {"a": 0}}}')
    source = {"type": "text", "files": ["data/a.csv"], "tokenizer": "data/tokenizer.json"}
    net.config["datasets"][net.rows[0]["dataset"]]["source"] = source
    net.rows[0]["model"] = "gpt"
    project = net.load()
    watch(project, project.named_runs()["net"].dataset)
    Path("data/tokenizer.json").read_text()
    assert told() >= OF_NONE
    assert not any("tokenizer" in path for path in watch_reads.found())


def test_a_model_may_read_what_its_dataset_and_its_own_identity_hold(net, caplog):
    project = net.load()
    watch(project, project.named_runs()["net"])
    assert told() == OF_NONE
    end_watch()
    assert "2 files were read that no identity contains" in caplog.text


def test_ranks_are_told_the_same_wherever_the_project_lies(net, monkeypatch, tmp_path):
    project = net.load()
    run = project.named_runs()["net"]
    write_watched_files(project, run)
    file = project.store / "work" / run.id / watch_reads.COUNTED_FILE
    known = watch_reads.read_counted(file)
    assert all(known.holds(str(Path(name).absolute())) for name in OF_SOURCE | OF_MODEL)
    assert not any(known.holds(str(Path(name).absolute())) for name in OF_NONE)
    kept = file.read_bytes()
    node = tmp_path / "node"
    node.mkdir()
    monkeypatch.chdir(node)
    Path("known").write_bytes(kept)
    assert watch_reads.read_counted(Path("known")).holds(str(node / "mypkg/models.py"))


def test_nothing_is_watched_or_written_where_it_is_off(net):
    net.config["runtime"] = {"watch_reads": "off"}
    project = net.load()
    run = project.named_runs()["net"]
    write_watched_files(project, run)
    watch(project, run)
    assert not (project.store / "work").exists()
    assert told() == set()


def test_an_error_that_the_code_has_caught_comes_before_anything_is_sealed(net):
    net.config["runtime"] = {"watch_reads": "error"}
    project = net.load()
    watch(project, project.named_runs()["net"])
    with pytest.raises(ConfigError):
        Path("other.txt").read_bytes()
    with pytest.raises(ConfigError, match=r"other\.txt"):
        end_watch()
