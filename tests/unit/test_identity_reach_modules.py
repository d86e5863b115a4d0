"""User code over several modules: moves, re-exports, what counts whole, what is named beside."""
# ruff: noqa: E501 - tables of short programs

from pathlib import Path

import pytest

from shardline.errors import ConfigError
from shardline.identity import CodeIndex
from tests.support.reached import ENTRY, reached

Files = dict[str, str]
NN = "from torch import nn\n"
BLOCK = (
    "def act(x): return x + 1\nclass Block(nn.Module):\n    def forward(self, x): return act(x)\n"
)
NET = "class Net(nn.Module):\n    def __init__(self): self.block = Block()\n"


def same(tmp_path: Path, before: Files, after: Files, entry: str = ENTRY, new: str = "") -> bool:
    one = reached(tmp_path / "before", before, entry)
    return one.digest == reached(tmp_path / "after", after, new or entry).digest


# what moved: (files before, files after, the entry point afterwards)
MOVES = {
    "a class, imported from its new place": (
        {"models": NN + BLOCK + NET},
        {"models": NN + "from blocks import Block\n" + NET, "blocks": NN + BLOCK},
        ENTRY,
    ),
    "a class, by another form of import": (
        {"models": NN + "from blocks import Block\n" + NET, "blocks": NN + BLOCK},
        {"models": NN + "import lib.blocks as b\n" + NET.replace("Block()", "b.Block()"), "lib.blocks": NN + BLOCK},
        ENTRY,
    ),
    "a class, re-exported by a package": (
        {"models": NN + BLOCK + NET},
        {"models": NN + "from lib import Block\n" + NET, "lib.__init__": "from .blocks import Block", "lib.blocks": NN + BLOCK},
        ENTRY,
    ),
    "the entry point itself": ({"models": NN + BLOCK + NET}, {"lib.nets.net": NN + BLOCK + NET}, "lib.nets.net:Net"),
    "the entry point, with its old name kept": ({"models": NN + BLOCK + NET}, {"models": "from nets import Net", "nets": NN + BLOCK + NET}, ENTRY),
    "two functions that call each other": (
        {"models": "def a(n): return n and b(n - 1)\ndef b(n): return n and a(n - 1)\nclass Net:\n    f = a"},
        {"models": "from lib import a\nclass Net:\n    f = a", "lib": "import other\ndef a(n): return n and other.b(n - 1)",
         "other": "import lib\ndef b(n): return n and lib.a(n - 1)"},
        ENTRY,
    ),
    "constants and their order": (
        {"models": "A = 1\nB = [A, 2]\nclass Net:\n    def f(self): return B"},
        {"models": "from lib import B\nclass Net:\n    def f(self): return B", "lib": "from other import A\nB = [A, 2]", "other": "A = 1"},
        ENTRY,
    ),
    "an import into a function": (
        {"models": NN + "from blocks import Block\n" + NET, "blocks": NN + BLOCK},
        {"models": NN + "class Net(nn.Module):\n    def __init__(self):\n        from blocks import Block as B\n        self.block = B()\n", "blocks": NN + BLOCK},
        ENTRY,
    ),
}  # fmt: skip


@pytest.mark.parametrize("moved", MOVES)
def test_moving_a_definition_does_not_count(tmp_path: Path, moved: str) -> None:
    before, after, entry = MOVES[moved]
    found = [reached(tmp_path / "1", before).digest, reached(tmp_path / "2", after, entry).digest]
    if moved != "an import into a function":  # which executes the import at another time
        assert found[0] == found[1]
        changed = {name: text.replace("+ 1", "+ 2").replace("n - 1", "n - 2").replace("A = 1", "A = 2")
                   for name, text in after.items()}  # fmt: skip
        assert reached(tmp_path / "3", changed, entry).digest != found[0]


# why a module counts whole: (text of lib.py, text of models.py)
WHOLE = {
    "getattr with a computed name, line 1": ("def pick(o, n): return getattr(o, n)\ndef apart(): return {}", "import lib\nclass Net:\n    f = lib.pick"),
    "globals, line 1": ("def pick(n): return globals()[n]\ndef apart(): return {}", "import lib\nclass Net:\n    f = lib.pick"),
    "eval, line 2": ("\ndef pick(n): return eval(n)\ndef apart(): return {}", "import lib\nclass Net:\n    f = lib.pick"),
    "__getattr__ of the module, line 1": ("def __getattr__(n): return n\ndef apart(): return {}", "import lib\nclass Net:\n    f = lib.x"),
    "star import, line 1": ("from os.path import *\ndef apart(): return {}", "import lib\nclass Net: pass"),
    "star import in models": ("def apart(): return {}", "from lib import *\nclass Net: pass"),
    "used as a value in models, line 3": ("def apart(): return {}", "import lib\nclass Net:\n    parts = [lib]"),
    "imported by name in models, line 2": ("def apart(): return {}", "import importlib\nlib = importlib.import_module('lib')\nclass Net: pass"),
    "no definition of missing seen in models, line 3": ("def apart(): return {}", "import lib\nclass Net:\n    f = lib.missing"),
    "sys.modules in models, line 4": ("def apart(): return {}", "import lib, sys\nclass Net:\n    def f(self, n):\n        return sys.modules[n]"),
    "inspect.getmembers, line 2": ("import inspect\ndef pick(o): return inspect.getmembers(o)\ndef apart(): return {}", "import lib\nclass Net:\n    f = lib.pick"),
}  # fmt: skip


@pytest.mark.parametrize("reason", WHOLE)
def test_a_module_counts_whole_and_why(tmp_path: Path, reason: str) -> None:
    lib, models = WHOLE[reason]
    files = {"models": models, "lib": lib.format(1)}
    assert reached(tmp_path / "before", files).whole["lib"] == reason
    assert not same(tmp_path, files, files | {"lib": lib.format(2)})


def test_getattr_counts_only_where_it_is_reached(tmp_path: Path) -> None:
    text = "def pick(o, n): return getattr(o, n)\nclass Net:\n    size = getattr(int, 'real', 0)\n    b = 1"
    assert reached(tmp_path, {"models": text}).whole == {}


def test_definitions_are_named(tmp_path: Path) -> None:
    files = {
        "models": "import lib\nprint(1)\nSIZE = lib.N\nclass Net:\n    def f(self): return SIZE\n    x = lib.g",
        "lib": "N = 3\ndef g(): pass\ndef apart(): pass",
    }
    before = reached(tmp_path, files).definitions
    assert set(before) == {
        "lib:N", "lib:g", "models:<module>", "models:Net", "models:Net.f", "models:SIZE"
    }  # fmt: skip
    after = reached(tmp_path, files | {"lib": "N = 4\ndef g(): pass"}).definitions
    assert {name for name in before if before[name] != after[name]} == {"lib:N"}


ENTRIES = {
    "models:Nets.Small": "class Nets:\n    class Small: size = {}\n    class Large: size = 3",
    "models:make": "def make(width): return width + {}",
    "models:Tiny": "from functools import partial\ndef net(a): return a\nTiny = partial(net, {})",
    "models:Tiny2": "def net(a): return a\nTiny2 = net({})",
    "models:Either": "if 1:\n    class Either: size = {}\nelse:\n    class Either: pass",
    "models:missing": "class Net: size = {}",
    "models:Net.missing": "class Net: size = {}",
    "models": "class Net: size = {}",
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_kinds_of_entry_points(tmp_path: Path, entry: str) -> None:
    files = [{"models": ENTRIES[entry].format(n)} for n in (1, 2)]
    assert not same(tmp_path, *files, entry)


def test_two_entry_points_of_one_class_differ(tmp_path: Path) -> None:
    files = {"models": ENTRIES["models:Nets.Small"].format(1)}
    assert not same(tmp_path, files, files, "models:Nets.Small", "models:Nets.Large")


def test_no_such_module(tmp_path: Path) -> None:
    found = reached(tmp_path, {"other": ""}, "nowhere:Net")
    assert (found.definitions, found.third_party) == ({}, {"nowhere"})


def test_a_module_that_is_missing_a_definition_counts_whole(tmp_path: Path) -> None:
    found = reached(tmp_path, {"models": "def f(): pass\nclass A: pass"}, "models:Net")
    assert set(found.definitions) == {"models:f", "models:A"}
    assert found.whole == {"models": "no definition of Net seen"}


def test_broken_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.py, line 1: not valid Python"):
        reached(tmp_path, {"models": "def f(:\n"})


SCRIPT = "import lib\nRATE = {0}\ndef apart(): return {1}\nif __name__ == '__main__':\n    lib.train({2})\n"


@pytest.mark.parametrize(("place", "counts"), [(0, True), (1, False), (2, True)])
def test_all_statements_of_a_script_count(tmp_path: Path, place: int, counts: bool) -> None:
    numbers = [1, 1, 1]
    before = {"train": SCRIPT.format(*numbers), "lib": "def train(n): return n"}
    numbers[place] = 2
    after = before | {"train": SCRIPT.format(*numbers)}
    assert same(tmp_path, before, after, "__main__") is not counts


def test_packages_that_reached_code_imports(tmp_path: Path) -> None:
    files = {
        "models": "import json\nfrom torch import nn\nimport lib\ndef apart():\n    import pandas\n"
        "class Net:\n    def f(self):\n        import scipy.signal\n        return lib.f",
        "lib": "import numpy as np\ndef f(): pass",
        "other": "import sklearn",
    }
    assert reached(tmp_path, files).third_party == {"torch", "scipy", "numpy"}


def test_public_names_of_shardline_count_by_name_alone(tmp_path: Path) -> None:
    files = {
        "models": "from shardline.training.models.base import Classifier\nclass Net(Classifier): pass"
    }
    found = reached(tmp_path, files)
    assert (set(found.definitions), found.third_party) == ({"models:Net"}, set())
    shipped = reached(tmp_path, files, "shardline.training.models.cnn:CNN")
    assert (shipped.definitions, shipped.third_party) == ({}, set())
    assert shipped.digest != reached(tmp_path, files, "shardline.training.models.mlp:MLP").digest


def test_other_code_of_shardline_counts_as_the_users(tmp_path: Path) -> None:
    files = {
        "models": "import shardline.training.metrics\nclass Net:\n    make = shardline.training.metrics.final_metrics"
    }
    assert any(
        name.startswith("shardline.training.metrics:")
        for name in reached(tmp_path, files).definitions
    )


READERS = (
    "from pathlib import Path\nHERE = Path(__file__).parent\nclass Net:\n    def f(self): return (HERE / 'data/vocab.txt').read_text()",
    "import os\nclass Net:\n    text = open(os.path.join(os.path.dirname(__file__), 'data', 'vocab.txt')).read()",
    "from importlib.resources import files\nclass Net:\n    def f(self): return files(__package__).joinpath('data/vocab.txt')",
    "import pkgutil\nclass Net:\n    def f(self): return pkgutil.get_data(__name__, 'data/vocab.txt')",
)


@pytest.mark.parametrize("text", READERS)
def test_a_file_beside_the_module_counts(tmp_path: Path, text: str) -> None:
    found = []
    for n in (1, 2):
        files = {"pkg.models": text, "pkg/data/vocab.txt": str(n), "pkg/data/other.txt": str(n)}
        found.append(reached(tmp_path, files, "pkg.models:Net"))
    assert found[0].digest != found[1].digest
    assert "pkg.models:file data/vocab.txt" in found[0].definitions
    assert not any("other.txt" in name for name in found[0].definitions)


def test_a_file_that_is_written_does_not_count(tmp_path: Path) -> None:
    text = "from pathlib import Path\nclass Net:\n    def f(self):\n        (Path(__file__).parent / 'log.txt').write_text('')\n        open(Path(__file__).parent / 'log.txt', 'a')"
    files = [{"models": text, "log.txt": str(n)} for n in (1, 2)]
    assert same(tmp_path, *files)


def test_a_folder_added_to_the_path_is_searched(tmp_path: Path) -> None:
    text = "import sys\nsys.path.insert(0, 'lib')\nimport helpers\nclass Net:\n    f = helpers.f"
    files = [
        {"models": text, "lib/helpers.py": f"def f(): return {n}\ndef g(): return {n}"}
        for n in (1, 2)
    ]
    found = reached(tmp_path / "x", files[0])
    assert "helpers (1):f" in found.definitions
    assert "helpers (1):g" not in found.definitions
    assert not same(tmp_path, *files)


def test_a_compiled_module_counts_by_its_bytes(tmp_path: Path) -> None:
    digests = set()
    for n in (1, 2):
        (tmp_path / "fast.so").write_bytes(bytes([n]))
        files = {"models": "import fast\nclass Net:\n    f = fast.f"}
        digests.add(reached(tmp_path, files).digest)
    assert len(digests) == 2


def test_the_result_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text("class Net: pass")
    index = CodeIndex((tmp_path,))
    assert index.reach(ENTRY) is index.reach(ENTRY)


def test_a_long_chain_of_imports_ends(tmp_path: Path) -> None:
    files = {f"m{n}": f"import m{n + 1}\ndef f(): return m{n + 1}.f()" for n in range(1200)}
    files |= {"models": "import m0\nclass Net:\n    f = m0.f", "m1200": "def f(): return 1"}
    assert "m1200:f" in reached(tmp_path, files).definitions
