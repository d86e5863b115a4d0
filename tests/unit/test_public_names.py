"""The names that users import from Shardline: lazy, light, and counted in identities alike."""

import subprocess
import sys
from pathlib import Path

import pytest

import shardline
from shardline.identity.code import CodeIndex

MODULES = ("errors", "ledger", "losses", "models", "sources", "transforms")
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
