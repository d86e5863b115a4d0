"""Mistakes that newcomers make in config and run table of the project that `init` writes: what each message says."""

import shutil
from pathlib import Path

import pytest

from shardline.cli.new_project import init_project
from shardline.config.load import load_project
from shardline.errors import ShardlineError
from shardline.identity import code_index
from tests.unit.conftest import _parse_once

GOLDEN = Path(__file__).parents[2] / "golden" / "messages" / "mistakes.txt"
TABLE, CONFIG, MODEL = "config/runs.tsv", "config/config.yaml", "mypkg/models.py"
HEAD = (
    "name\tdataset\tmodel\tglobal_batch\tdevices\tmodel_args.width\toptim.lr\ttrainer.max_epochs\n"
)
ROW = "net\trings\tmypkg.models:Net\t32\t1\t16\t0.01\t1\n"
RINGS = "files: [data/rings.csv]}\n    shards: 4"
# A file, what is replaced in it, and by what; bytes take the place of the whole file.
MISTAKES = {
    "a learning rate that is text": (TABLE, "0.01", "fast"),
    "a negative learning rate": (TABLE, "0.01", "-0.01"),
    "no devices": (TABLE, "\t1\t16", "\t0\t16"),
    "a batch that ranks cannot share": (TABLE, "\t32\t1", "\t33\t2"),
    "spaces in place of tabs": (TABLE, "\t", "  "),
    "a cell behind spaces": (TABLE, "net\trings", "net  rings"),
    "a row with spaces in place of tabs": (TABLE, ROW, "net rings mypkg.models:Net 32 1 16 [0.001, 0.01] 1\n"),
    "a script, and cells that are missing at the end": (TABLE, ROW, "net\trings\tscript: mypkg/models.py\n"),
    "a name twice": (TABLE, ROW, ROW + ROW),
    "a column twice": (TABLE, "model_args.width", "optim.lr"),
    "a column with a name of elsewhere": (TABLE, "optim.lr", "optim.learning_rate"),
    "a column without its group": (TABLE, "optim.lr", "lr"),
    "another column without its group": (TABLE, "trainer.max_epochs", "max_epochs"),
    "a column of a misspelt group": (TABLE, "model_args.width", "model_arg.lr"),
    "a dataset that is none": (TABLE, "rings", "ring"),
    "a class that is none": (TABLE, "models:Net", "models:Nett"),
    "a dot in place of the colon": (TABLE, "models:Net", "models.Net"),
    "a file in place of the module": (TABLE, "mypkg.models:", "mypkg/models.py:"),
    "a module that is none": (TABLE, "mypkg.models:", "mypkg.modelz:"),
    "a package that is none": (TABLE, "mypkg.models:", "mypgk.models:"),
    "a model of torchvision": (TABLE, "mypkg.models:Net", "resnet18"),
    "an empty table": (TABLE, None, b""),
    "a header alone": (TABLE, ROW, ""),
    "a byte order mark": (TABLE, None, b"\xef\xbb\xbf" + (HEAD + ROW).encode()),
    "line ends of Windows": (TABLE, None, (HEAD + ROW).replace("\n", "\r\n").encode()),
    "UTF-16": (TABLE, None, b"\xff\xfe" + (HEAD + ROW).encode("utf-16-le")),
    "a decimal comma": (TABLE, "0.01", "0,01"),
    "a name of any script": (TABLE, "net\t", "nétz-日本\t"),
    "a name with a slash": (TABLE, "net\t", "exp/net\t"),
    "a name with a space": (TABLE, "net\t", "my net\t"),
    "a list that is not closed": (TABLE, "0.01", "[0.01, 0.1"),
    "a list in parentheses": (TABLE, "0.01", "(0.01, 0.1)"),
    "a list without brackets": (TABLE, "0.01", "0.01, 0.1"),
    "a range": (TABLE, "0.01", "range(3)"),
    "a line that is switched off": (TABLE, HEAD, HEAD + "# old: net2\n"),
    "cells that are missing at the end": (TABLE, "\t32\t1\t16\t0.01\t1", ""),
    "a cell too many": (TABLE, "0.01\t1", "0.01\t1\t7"),
    "a tab before a key": (CONFIG, "  nodes: 1", "\tnodes: 1"),
    "a bracket that is not closed": (CONFIG, "files: [data/rings.csv]", "files: [data/rings.csv"),
    "an empty config": (CONFIG, None, b""),
    "a key twice": (CONFIG, "  seed: 1", "  seed: 1\n  seed: 2"),
    "an unknown key": (CONFIG, "  seed: 1", "  sed: 1"),
    "a seed that is text": (CONFIG, "  seed: 1", "  seed: one"),
    "a number that YAML takes for text": (CONFIG, "lr: 0.001", "lr: 1e-3"),
    "a switch in place of a number": (CONFIG, "patience: 5", "patience: off"),
    "half a precision": (CONFIG, "precision: 32-true", "precision: 16"),
    "splits of more than all": (CONFIG, RINGS, f"{RINGS}\n    splits: {{train: 0.8, validation: 0.1, test: 0.2}}"),
    "no test split": (CONFIG, RINGS, f"{RINGS}\n    splits: {{train: 0.9, validation: 0.1, test: 0}}"),
    "no shards": (CONFIG, RINGS, RINGS.replace("4", "0")),
    "a file that is not there": (CONFIG, "data/rings.csv", "data/rngs.csv"),
    "a source that is none": (CONFIG, "mypkg.sources:Rings", "mypkg.sources:Ring"),
    "a key of runtime": (CONFIG, "runtime:", "runtme:"),
    "a model that is not Python": (MODEL, "def forward(self, features):", "def forward(self, features)"),
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("init")
    init_project(folder)
    (folder / TABLE).write_text(HEAD + ROW)
    return folder


def test_every_mistake_of_config_and_table_has_its_sentence(project, golden, monkeypatch, tmp_path):
    monkeypatch.setattr(code_index, "parse_module", _parse_once)
    monkeypatch.delenv("SHARDLINE_STORE", raising=False)
    lines = []
    for number, (name, (file, old, new)) in enumerate(MISTAKES.items()):
        folder = tmp_path / str(number)
        shutil.copytree(project, folder)
        changed = folder / file
        if isinstance(new, bytes):
            changed.write_bytes(new)
        else:
            text = changed.read_text()
            assert old in text, name
            changed.write_text(text.replace(old, new, -1 if old == "\t" else 1))
        lines += [name, f"  {_message(folder)}".replace(f"{folder}/", ""), ""]
    golden(GOLDEN, "\n".join(lines))


def _message(folder: Path) -> str:
    try:
        found = load_project(workdir=folder)
    except ShardlineError as error:
        return str(error)
    return f"well: {', '.join(found.named_runs())}"
