"""The names that users import from Shardline: lazy, light, and counted in identities alike."""

import subprocess
import sys
from pathlib import Path

import pytest

import shardline
from shardline.identity.code_index import CodeIndex
from shardline.identity.resolution import has_method
from shardline.identity.user_code import reach
from shardline.identity.versions import EXPORTED, exported_by

EXPORTS = {
    "names": "from shardline.models import GPT as B\nclass Net(B): pass",
    "attribute": "import shardline as s\nclass Net(s.models.GPT): pass",
    "member": "from shardline import models\nclass Net(models.GPT): pass",
    "by text": "from shardline import models\nNet = getattr(models, 'GPT')",
    "called": "from shardline.models import GPT\nclass Net:\n    def net(self): return GPT.forward",
}
MODULES = ("errors", "ledger", "losses", "models", "projects", "sources", "transforms")
HEAVY = ("torch", "pytorch_lightning", "pandas", "numpy", "snakemake", "yaml")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_shardline_loads_nothing_else():
    code = f"import sys, shardline; print(sorted({{*{HEAVY}}} & set(sys.modules)), "
    assert python(code + "[m for m in sys.modules if m.startswith('shardline.')])") == "[] []"


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_is_loaded_at_its_first_use(name):
    code = f"import shardline; m = shardline.{name}; print(m.__name__, all(hasattr(m, n) for n in m.__all__))"
    assert python(code) == f"shardline.{name} True"
    assert name in dir(shardline)


@pytest.mark.parametrize("name", ["errors", "sources"])
def test_errors_and_sources_do_not_load_torch(name):
    assert python(f"import sys, shardline.{name}; print('torch' in sys.modules)") == "False"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'shardline' has no attribute 'source'"):
        shardline.source  # noqa: B018


@pytest.mark.parametrize("name", ["sources", "models"])
def test_every_spelling_of_a_public_module_is_seen_in_the_import_closure(tmp_path: Path, name):
    spellings = {
        "attribute": f"import shardline\nBASE = shardline.{name}.Base",
        "renamed": f"import shardline as sl\nBASE = sl.{name}.Base",
        "dotted": f"import shardline.{name}\nBASE = shardline.{name}.Base",
        "member": f"from shardline import {name}\nBASE = {name}.Base",
        "names": f"from shardline.{name} import Base",
    }
    index = CodeIndex((tmp_path,))
    for spelling, text in spellings.items():
        (tmp_path / f"{spelling}.py").write_text(text)
        assert f"shardline.{name}" in index.closure(spelling)[0], spelling
    (tmp_path / "version.py").write_text("import shardline\nprint(shardline.__version__)")
    assert set(index.closure("version")[0]) == {"version", "shardline"}


@pytest.mark.parametrize("spelling", EXPORTS)
def test_a_shipped_model_counts_by_its_own_history_however_it_is_named(tmp_path: Path, spelling):
    (tmp_path / "net.py").write_text(EXPORTS[spelling])
    index = CodeIndex((tmp_path,))
    assert exported_by(reach(index, "net:Net").shipped) == {"gpt"}
    if spelling in ("names", "attribute", "member"):
        assert has_method(index, "net:Net", "describe_sample")


def test_code_that_names_no_shipped_model_counts_none_and_a_star_import_all(tmp_path: Path):
    (tmp_path / "net.py").write_text(
        "from shardline.models import Classifier\nclass Net(Classifier): pass"
    )
    (tmp_path / "star.py").write_text("from shardline.models import *\nclass Net(Classifier): pass")
    index = CodeIndex((tmp_path,))
    assert exported_by(reach(index, "net:Net").shipped) == set()
    assert exported_by(reach(index, "star:Net").shipped) == {"gpt", "resnet", "unet"}


def test_exported_models_are_the_shipped_ones():
    for name, history in EXPORTED.items():
        model = getattr(shardline.models, name.rpartition(".")[2])
        assert model.__module__ == f"shardline.training.models.{history}"
    with pytest.raises(AttributeError, match="has no attribute 'VGG'"):
        shardline.models.VGG  # noqa: B018
