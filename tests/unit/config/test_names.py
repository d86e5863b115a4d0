"""Names are links: what a run or dataset is called changes nothing that is made of it."""

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardline.config.layout import (
    LAYOUT,
    ResultsLayout,
    check_layout,
    identities_of,
    names_that_have_been,
)
from shardline.config.project import record_names, titles_of
from shardline.config.user_files import read_notes
from shardline.errors import ConfigError
from shardline.pipeline import run_jobs as jobs
from shardline.pipeline.hooks import check_addresses
from shardline.pipeline.links import publish
from tests.support.fake_project import DIGEST, FakeProject

HERE = ResultsLayout(root=Path())  # the present folder

ROW = {"dataset": "table", "model": "linear", "optim.lr": 0.1}


def ids(fake: FakeProject) -> dict[str, str]:
    return {name: run.id for name, run in fake.load().named_runs().items()}


def test_a_new_name_a_twin_and_a_grown_list_are_the_same_trainings(fake):
    fake.rows = [{**ROW, "name": "a", "optim.lr": 0.01}]
    before = ids(fake)["a"]
    fake.rows = [
        {**ROW, "name": "b", "optim.lr": "[0.01, 0.03]"},
        {**ROW, "name": "twin", "optim.lr": "1e-2"},
    ]
    found = ids(fake)
    assert set(found) == {"b_lr=0.01", "b_lr=0.03", "twin"}
    assert found["b_lr=0.01"] == found["twin"] == before != found["b_lr=0.03"]
    assert len(fake.load().runs) == 2


def test_a_datasets_new_name_and_its_twin_are_the_same_dataset(fake):
    before = ids(fake)
    table = fake.config["datasets"].pop("table")
    fake.config["datasets"] |= {"renamed": table, "twin": {**table}}
    fake.rows[1]["dataset"] = "renamed"
    fake.rows.append({**fake.rows[1], "name": "again", "dataset": "twin"})
    found, project = ids(fake), fake.load()
    assert found["flat"] == found["again"] == before["flat"]
    assert project.runs[found["flat"]].dataset.names == ("renamed", "twin")


def test_two_evaluations_of_one_training_are_two_runs_of_one_identity(fake):
    fake.rows = [
        {**ROW, "name": "a", "evaluation.split": "test"},
        {**ROW, "name": "b", "evaluation.split": "validation"},
        {**ROW, "name": "c", "evaluation.split": "validation"},
    ]
    project = fake.load()
    first, second = project.runs.values()
    assert (first.names, second.names, first.id) == (("a",), ("b", "c"), second.id)
    assert first.evaluation != second.evaluation
    assert project.runs[str(project.key_of(first.id, second.evaluation_id))] is second
    assert project.key_of(first.id, DIGEST) is None
    assert titles_of(project)[first.id] == f"a, b, c ({first.id})"


def test_what_a_row_sets_counts_for_all_that_share_its_run(fake):
    fake.rows = [{**ROW, "name": "a"}, {**ROW, "name": "b", "seed": 7}]
    fake.config["defaults"]["seed"] = 7
    (run,) = fake.load().runs.values()
    assert run.set_by_row == ["optim.lr", "seed"]


def test_no_sealed_document_holds_a_name(fake):
    fake.rows = [{**ROW, "name": "verycalled", "dataset": "wellknown"}]
    fake.config["datasets"]["wellknown"] = fake.config["datasets"].pop("table")
    jobs.resolve_run(fake.plan("verycalled"), "run.json", "identity.json")
    written = Path("run.json").read_text() + Path("identity.json").read_text()
    assert "verycalled" not in written
    assert "wellknown" not in written


def test_the_history_tells_every_name_and_identity(fake):
    old = ids(fake)["flat"]
    fake.rows[1]["seed"] = 2
    new = ids(fake)["flat"]
    fake.rows[1]["name"] = "plain"
    assert ids(fake)["plain"] == new
    assert identities_of(HERE, "run", "flat") == [new, old]
    assert names_that_have_been(HERE, "run")[new] == ["flat", "plain"]
    size = Path("results/names.jsonl").stat().st_size
    fake.load()
    assert Path("results/names.jsonl").stat().st_size == size, "what is known is not written again"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_history_that_was_cut_off_anywhere_is_gone_on_with(data):
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            _cut_off(data)
        finally:
            os.chdir(here)


class _Named:
    def __init__(self, name: str, identity: str) -> None:
        self.names, self.name, self.id = (name,), name, identity


class _Small:
    layout = HERE

    def __init__(self, **runs: str) -> None:
        self.runs = {identity: _Named(name, identity) for name, identity in runs.items()}
        self.datasets: dict[str, _Named] = {}
        self.built = self.datasets


def _cut_off(data: st.DataObject) -> None:
    steps = data.draw(
        st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=6)
    )
    file = Path("results/names.jsonl")
    for name, identity in steps:
        record_names(_Small(**{name: identity * 12}))
        kept = data.draw(st.integers(0, 8))
        if kept and file.exists():  # a kill while the last line was written
            file.write_bytes(file.read_bytes()[:-kept])
    name, identity = steps[-1][0], steps[-1][1] * 12
    record_names(_Small(**{name: identity}))
    assert identities_of(HERE, "run", name)[0] == identity
    assert names_that_have_been(HERE, "run")[identity][-1] == name


def test_links_lead_from_names_to_results_and_logs(fake):
    project = fake.seal_all()
    run = project.named_runs()["flat"]
    fake.workspace.write(f"logs/train/{run.id}.log", "trained")
    fake.workspace.write(f"logs/train/{run.id}/rank-1.log", "too")
    publish(project)
    assert Path("results/latest/flat/model.safetensors").samefile(run.model)
    assert Path("results/latest/flat/evaluation.json").samefile(run.evaluation)
    assert Path("results/latest-datasets/table/manifest.json").samefile(run.dataset.manifest)
    assert Path("logs/latest/flat/train.log").read_text() == "trained"
    assert Path("logs/latest/flat/train/rank-1.log").read_text() == "too"
    fake.rows[1]["name"] = "plain"
    publish(fake.load())
    assert Path("results/latest/plain").samefile(run.folder)


def test_a_layout_that_is_not_known_is_refused(fake):
    check_layout(HERE)  # no results yet
    fake.seal_all()
    check_layout(HERE)
    file = Path("results/layout.json")
    before = r"before the first release \({}, expected layout 2\), .*; move .* away, or train again"
    for text, found in (
        ('{"layout": 1}', before.format("layout 1")),
        (
            f'{{"layout": {LAYOUT + 1}}}',
            f"layout is {LAYOUT + 1}, expected {LAYOUT}; use the version",
        ),
        ("{", r'is unreadable, expected {"layout": 2}; write that into it'),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=found):
            check_layout(HERE)
    file.unlink()
    with pytest.raises(ConfigError, match=before.format("no layout.json")):
        check_layout(HERE)


def test_a_folder_of_another_identity_is_refused(fake):
    project = fake.seal_all()
    check_addresses(project)
    run = project.named_runs()["flat"]
    document = json.loads((run.folder / "identity.json").read_text())
    (run.folder / "identity.json").write_text(json.dumps({**document, "more": 1}))
    with pytest.raises(ConfigError, match=f"{run.id} contains the results of another identity"):
        check_addresses(project)
    (run.folder / "identity.json").write_text("{")
    check_addresses(project)  # damage is for `shardline verify`


def test_two_rows_whose_digests_meet_are_refused(fake, monkeypatch):
    monkeypatch.setattr("shardline.config.load_runs.short_digest", lambda document: DIGEST)
    with pytest.raises(ConfigError, match=f"have the same digest {DIGEST} by chance"):
        fake.load()


# --- notes ------------------------------------------------------------------------------------


def test_notes_are_shown_in_the_report_and_make_no_run_stale(fake):
    before, report = ids(fake), fake.load().report
    note = "---\ntags: [baseline, paper]\n---\n# Why\n\nIt was first.\n"
    fake.workspace.write("config/notes/flat.md", note)
    fake.workspace.write("config/notes/nobody.md", "unread")
    project = fake.load()
    assert ids(fake) == before
    assert project.report != report
    assert set(project.notes) == {"flat"}
    assert project.notes["flat"].text == "# Why\n\nIt was first."
    assert project.notes["flat"].tags == ("baseline", "paper")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\ntags: baseline\n---\n", "tags=baseline is not a list of texts"),
        ("---\ntags: [1]\n---\n", r"tags=\[1\] is not a list of texts"),
        ("---\ntags: [\n---\n", "not valid YAML"),
        ("---\ntitle: x\n---\n", "only `tags` is known"),
    ],
)
def test_a_note_of_another_form_is_refused_by_file(tmp_path, text, message):
    (tmp_path / "config/notes").mkdir(parents=True)
    (tmp_path / "config/notes/flat.md").write_text(text)
    with pytest.raises(ConfigError, match=rf"^config/notes/flat.md: .*{message}"):
        read_notes(tmp_path, ["flat"])


def test_a_note_without_tags_is_text_alone(tmp_path):
    (tmp_path / "config/notes").mkdir(parents=True)
    (tmp_path / "config/notes/flat.md").write_text("--- not YAML\n---\nhf_" + "a1B2" * 9)
    note = read_notes(tmp_path, ["flat"])["flat"]
    assert note.text.startswith("--- not YAML\n---\n")
    assert "a1B2a1B2" not in note.text, "secrets are masked"
    assert note.tags == ()
