"""Mistakes in the files of a dataset, found before shards are built: what is told of each, and that it is told once."""

import gzip
import sys
import tempfile
from pathlib import Path

import pytest

from shardline.config.resolved import RunSpec, as_type
from shardline.config.settings import fill, schema_of
from shardline.config.settings.run_settings import RunSettings
from shardline.training.rank_task import CheckedDataset, ModelResult
from tests.support.rank_tasks import checked

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests/golden/messages/data.txt"
TABLE = "a,b,y\n" + "1,2,0\n3,4,1\n" * 50
RINGS = (REPOSITORY / "config/project/data/rings.csv").read_text()
# The file, and the source's settings.
NUMBERED = {"label": "y", "num_classes": 2}
MISTAKES = {
    "a header line that the source does not know": ("radius,angle\n" + RINGS, None),
    "an empty file of a source of one's own": ("", None),
    "a broken row, far from the first ones": (RINGS + "0.5,x\n", None),
    "a label's column that is none": (TABLE, {**NUMBERED, "label": "target"}),
    "a label that is text and no class": (TABLE.replace("0\n", "no\n"), {"label": "y", "classes": ["yes", "maybe"]}),
    "a label that is text where classes are numbered": (TABLE.replace("0\n", "no\n"), NUMBERED),
    "a row of the table with a cell too many": (TABLE + "1,2,3,0\n", NUMBERED),
    "a row of the table that holds text": (TABLE + "1,oops,0\n", NUMBERED),
    "a table of a header alone": ("a,b,y\n", NUMBERED),
    "an empty table": ("", NUMBERED),
    "a feature that is none": (TABLE, {**NUMBERED, "features": ["a", "c"]}),
    "UTF-16": (TABLE.encode("utf-16"), NUMBERED),
    "an index of a data frame": ("," + TABLE.replace("\n", "\n0,", 100), NUMBERED),
    "decimal commas": ("a;b;y\n" + "1,5;2;0\n2,5;3;1\n" * 50, {**NUMBERED, "delimiter": ";"}),
    "a delimiter at the end of each row": (TABLE.replace("0\n", "0,\n").replace("1\n", "1,\n"), NUMBERED),
    "lines of Mac OS 9": (TABLE.replace("\n", "\r"), NUMBERED),
}  # fmt: skip
PACKED = gzip.compress(TABLE.encode())


@pytest.fixture
def check(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rings_source", raising=False)
    (tmp_path / "rings_source.py").write_text(
        (REPOSITORY / "config/project/mypkg/sources.py").read_text()
    )

    def run(content: str | bytes, source: dict | None, name: str = "t.csv") -> ModelResult:
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        given = {"global_batch": 32, "nodes": 1, "devices": 1, "dataset": "tab"}
        spec = RunSpec(
            run="0123456789ab", name="net", model="mlp", model_class="shardline.training.models.mlp:MLP",
            settings=as_type(fill(given, schema_of(RunSettings)), RunSettings),
        )  # fmt: skip
        dataset = CheckedDataset(
            id="ba9876543210", name="tab", manifest=tmp_path / "none", shards=tmp_path / "none",
            source_class="rings_source:Rings" if source is None else "shardline.data.sources.csv:Csv",
            source={} if source is None else source, num_shards=2, files=[file],
        )  # fmt: skip
        return checked(spec, dataset, Path(tempfile.mkdtemp(dir=tmp_path)))

    return run


def test_every_mistake_is_one_sentence_that_comes_once(check, golden, tmp_path):
    lines = []
    for name, (content, source) in MISTAKES.items():
        found = check(content, source)
        assert len(found.problems) == 1, (name, found)
        assert "site-packages" not in found.problems[0], "frames are the user's own"
        lines += [name, f"  {found.problems[0]}".replace(f"{tmp_path}/", ""), ""]
    golden(GOLDEN, "\n".join(lines))


def test_a_table_that_is_well_is_counted(check):
    found = check(TABLE, NUMBERED)
    assert (found.problems, found.num_rows) == ([], 100)
    assert check(PACKED, NUMBERED, "t.csv.gz").num_rows == 100
