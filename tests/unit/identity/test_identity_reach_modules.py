"""User code over several modules: moves, re-exports, what counts whole, what is named beside."""
# ruff: noqa: E501 - tables of short programs

from pathlib import Path

import pytest

from shardline.errors import ConfigError
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
        "models": "from shardline.training.models.classifier_base import Classifier\nclass Net(Classifier): pass"
    }
    found = reached(tmp_path, files)
    assert (set(found.definitions), found.third_party) == ({"models:Net"}, set())
    shipped = reached(tmp_path, files, "shardline.training.models.cnn:CNN")
    assert (shipped.definitions, shipped.third_party) == ({}, set())
    assert shipped.digest != reached(tmp_path, files, "shardline.training.models.mlp:MLP").digest


def test_other_code_of_shardline_counts_as_the_users(tmp_path: Path) -> None:
    files = {
        "models": "import shardline.training.metrics_file\nclass Net:\n    make = shardline.training.metrics_file.final_metrics"
    }
    assert any(
        name.startswith("shardline.training.metrics_file:")
        for name in reached(tmp_path, files).definitions
    )


PATH = "from pathlib import Path\n"
HERE = PATH + "HERE = Path(__file__).parent\n"
OPENS = "class Net:\n    def f(self): return {}\n"
# how data/vocab.txt, or models.txt, is read by pkg.models: its text, and other modules
READERS: dict[str, tuple[str, Files]] = {
    "a constant": (HERE + OPENS.format("(HERE / 'data/vocab.txt').read_text()"), {}),
    "os.path": (
        "import os\n"
        + OPENS.format("open(os.path.join(os.path.dirname(__file__), 'data', 'vocab.txt'))"),
        {},
    ),
    "resources": (
        "from importlib.resources import files\n"
        + OPENS.format("files(__package__).joinpath('data/vocab.txt')"),
        {},
    ),
    "resources, by name": (
        "from importlib.resources import files\n" + OPENS.format("files('pkg') / 'data/vocab.txt'"),
        {},
    ),
    "resources, of an import": (
        "import pkg\nfrom importlib.resources import files\n"
        + OPENS.format("files(pkg) / 'data/vocab.txt'"),
        {},
    ),
    "pkgutil": (
        "import pkgutil\n" + OPENS.format("pkgutil.get_data(__name__, 'data/vocab.txt')"),
        {},
    ),
    "pkgutil, of another package": (
        "import pkgutil\n" + OPENS.format("pkgutil.get_data('lib', 'data.txt')"),
        {"lib.__init__": ""},
    ),
    "with_name": (PATH + OPENS.format("Path(__file__).with_name('models.txt').read_text()"), {}),
    "with_suffix": (PATH + OPENS.format("Path(__file__).resolve().with_suffix('.txt').open()"), {}),
    "with_stem": (
        PATH + OPENS.format("(Path(__file__).parent / 'data/x.txt').with_stem('vocab')"),
        {},
    ),
    "joinpath": (PATH + OPENS.format("Path(__file__).parent.joinpath('data', 'vocab.txt')"), {}),
    "parents": (
        "",
        {"pkg.sub.models": PATH + OPENS.format("Path(__file__).parents[1] / 'data/vocab.txt'")},
    ),
    "a step up": (
        "",
        {"pkg.sub.models": PATH + OPENS.format("Path(__file__).parent / '../data/vocab.txt'")},
    ),
    "replace": (OPENS.format("open(__file__.replace('.py', '.txt'))"), {}),
    "a slice": (OPENS.format("open(__file__[:-3] + '.txt')"), {}),
    "splitext": ("import os\n" + OPENS.format("open(os.path.splitext(__file__)[0] + '.txt')"), {}),
    "rsplit": (OPENS.format("open(__file__.rsplit('/', 1)[0] + '/data/vocab.txt')"), {}),
    "%": (
        "import os\n"
        + OPENS.format("open('%s/data/%s.txt' % (os.path.dirname(__file__), 'vocab'))"),
        {},
    ),
    "format": (
        "import os\n" + OPENS.format("open('{}/data/vocab.txt'.format(os.path.dirname(__file__)))"),
        {},
    ),
    "a folder of a sibling": (
        "from pkg.paths import HERE as H\n" + OPENS.format("(H / 'data/vocab.txt').read_text()"),
        {"pkg.paths": HERE},
    ),
    "an attribute of a sibling": (
        "from . import paths\n" + OPENS.format("(paths.HERE / 'data/vocab.txt').read_text()"),
        {"pkg.paths": HERE},
    ),
    "a folder of the package": (
        "from pkg import HERE\n" + OPENS.format("open(HERE / 'data/vocab.txt')"),
        {"pkg.__init__": "from .paths import HERE", "pkg.paths": HERE},
    ),
    "a function for the folder": (
        "from pkg.paths import here\n" + OPENS.format("open(here() / 'data/vocab.txt')"),
        {"pkg.paths": PATH + "def here(): return Path(__file__).parent"},
    ),
    "a helper": (
        HERE
        + "def load(name): return open(HERE / name)\n"
        + OPENS.format("load('data/vocab.txt')"),
        {},
    ),
    "a helper, by a part of the name": (
        HERE
        + "def load(*, name): return open(HERE / f'data/{name}.txt')\n"
        + OPENS.format("load(name='vocab')"),
        {},
    ),
    "a helper of a helper": (
        HERE
        + "def path(n): return HERE / n\ndef load(name): return open(path(name))\n"
        + OPENS.format("load('data/vocab.txt')"),
        {},
    ),
    "a helper of a sibling": (
        "from pkg.paths import load\n" + OPENS.format("load('data/vocab.txt')"),
        {"pkg.paths": HERE + "def load(name): return open(HERE / name)"},
    ),
    "a method": (
        HERE
        + "class Net:\n    def load(self, name): return open(HERE / name)\n    def f(self): return self.load('data/vocab.txt')",
        {},
    ),
    "a class": (
        HERE
        + "class Vocab:\n    def __init__(self, name): self.text = open(HERE / name)\n"
        + OPENS.format("Vocab('data/vocab.txt')"),
        {},
    ),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_file_beside_the_module_counts(tmp_path: Path, reader: str) -> None:
    text, more = READERS[reader]
    entry = f"{next((name for name in more if name.endswith('.models')), 'pkg.models')}:Net"
    found = []
    for n in (1, 2):
        named = ("pkg/data/vocab.txt", "pkg/models.txt", "lib/data.txt", "pkg/data/other.txt")
        files = {"pkg.models": text, **more, **dict.fromkeys(named, str(n))}
        found.append(reached(tmp_path, files, entry))
    assert found[0].digest != found[1].digest
    (named_file,) = (name for name in found[0].definitions if ":file " in name)
    assert named_file.endswith(("vocab.txt", "models.txt", "data.txt"))


def test_a_file_elsewhere_and_one_that_no_literal_names_do_not_count(tmp_path: Path) -> None:
    files = {
        "pkg.models": HERE + "def load(name): return open(HERE / name)\n"
        "class Net:\n    def f(self, name):\n        load(name)\n        return open(HERE.parent / 'up.txt')",
        "pkg.__init__": "",
    }
    one, two = ({**files, "up.txt": str(n), "pkg/name.txt": str(n)} for n in (1, 2))
    assert same(tmp_path, one, two)


@pytest.mark.parametrize("base", ["yaml.YAMLObject", "torch.nn.Module"])
def test_a_class_of_a_base_that_keeps_a_register_counts_unnamed(tmp_path: Path, base: str) -> None:
    files = {
        "models": "import tags\nclass Net: pass",
        "tags": f"import {base.partition('.')[0]}\nclass K({base}):\n    yaml_tag = '!k'\n    x = {{}}",
    }
    one, two = ({**files, "tags": files["tags"].format(n)} for n in (1, 2))
    assert same(tmp_path, one, two) == (base == "torch.nn.Module")


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


def test_a_long_chain_of_imports_ends(tmp_path: Path) -> None:
    files = {f"m{n}": f"import m{n + 1}\ndef f(): return m{n + 1}.f()" for n in range(1200)}
    files |= {"models": "import m0\nclass Net:\n    f = m0.f", "m1200": "def f(): return 1"}
    assert "m1200:f" in reached(tmp_path, files).definitions
