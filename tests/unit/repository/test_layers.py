"""Imports point one way, and the Snakefile's never reach torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[3]
SOURCE = REPOSITORY / "src"
PLUGIN = (
    REPOSITORY / "plugins/snakemake-executor-plugin-azureml/src/snakemake_executor_plugin_azureml"
)
LOGGER = (
    REPOSITORY / "plugins/snakemake-logger-plugin-shardline/src/snakemake_logger_plugin_shardline"
)

# Each package may import those of the lines above its own.
LAYERS = [
    {"core"},
    {"records"},
    {"identity"},
    {"config"},
    {"data", "launch", "report", "checkpoints"},
    {"supervision", "environments"},
    {"provenance", "tracking"},
    {"training"},
    {"results", "drills"},
    {"pipeline"},
    {"notebook"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Names for users alone: each module hands on what a package holds.
PUBLIC = {"errors", "ledger", "losses", "models", "projects", "sources", "transforms"}
# The report reads sealed files, and no settings, so that it can be made without the project; the
# defaults are Shardline's own.
OF_REPORT = {
    "config.settings.run_settings.default_settings", "config.resolved.Size", "config.resolved.Study",
}  # fmt: skip


def imports_of(path: Path) -> set[tuple[str, ...]]:
    """Return the modules of shardline that a file imports, each as the parts of its name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shardline":
            parts = (node.module or "").split(".")[1:]
            found |= {(*parts, alias.name) for alias in node.names if alias.name != "__version__"}
        elif isinstance(node, ast.Import):
            found |= {
                tuple(alias.name.split(".")[1:])
                for alias in node.names
                if alias.name.startswith("shardline.")
            }
    return found


FILES = sorted((SOURCE / "shardline").rglob("*.py"))
IO = sorted((SOURCE / "shardline_io").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(f.relative_to(SOURCE)) for f in FILES])
def test_imports_point_one_way(path):
    mine = path.relative_to(SOURCE / "shardline").parts[0].removesuffix(".py")
    imported = imports_of(path)
    if mine == "__init__":
        assert not imported
        return
    assert not PUBLIC & {parts[0] for parts in imported}
    if mine in PUBLIC:
        return
    assert mine in LEVEL, f"{mine} has no place in the order of packages; give it one"
    others = {parts for parts in imported if parts[0] != mine}
    assert {parts for parts in others if LEVEL[parts[0]] >= LEVEL[mine]} == set()
    if mine == "checkpoints":
        assert {parts[0] for parts in others} <= {"core"}
    if mine == "report":
        own = [parts for parts in others if parts[0] not in ("core", "records")]
        assert {".".join(parts) for parts in own} <= OF_REPORT


def test_packages_depend_on_few_others():
    """An import that joins two packages for the first time may be one too many: is its module in the right place?"""
    pairs = set()
    for path in FILES:
        mine = path.relative_to(SOURCE / "shardline").parts[0]
        pairs |= {
            (mine, parts[0]) for parts in imports_of(path) if {mine, parts[0]} <= LEVEL.keys()
        }
    assert len({pair for pair in pairs if pair[0] != pair[1]}) <= 92, sorted(pairs)


@pytest.mark.parametrize(
    "module",
    [
        "shardline.config.load", "shardline.pipeline.hooks", "shardline.cli",
        *(f"shardline.pipeline.{job}" for job in (
            "dataset_jobs", "environment_jobs", "report_job", "run_jobs", "training",
        )),
    ],
)  # fmt: skip
def test_what_the_snakefile_and_the_command_import_stays_light(module):
    heavy = "{'torch', 'pytorch_lightning', 'pandas', 'altair', 'sklearn', 'snakemake', 'rattler', 'detect_secrets'}"
    code = f"import {module}, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("job", ["run_jobs", "training"])
def test_what_the_jobs_of_each_run_import_stays_light(job):
    """A run has three such jobs, and what they import is most of their time: see `scripts/`."""
    heavy = "{'rich', 'packaging', 'importlib.metadata', 'yaml', 'psutil', 'numpy', 'zipfile', 'email.message'}"
    code = f"import shardline.pipeline.{job}, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", ["benchmarks", "docs", "examples"])
def test_programs_beside_the_package_import_modules_that_are_there(folder):
    """Type checks do not cover them, so that a module's new name would be found when somebody starts one."""
    for path in (REPOSITORY / folder).rglob("*.py"):
        for *parts, _ in imports_of(path):
            module = SOURCE.joinpath("shardline", *parts)
            assert module.is_dir() or module.with_suffix(".py").is_file(), (path, module)


def test_shardline_and_the_executor_plugin_do_not_know_each_other():
    texts = {path: path.read_text() for path in PLUGIN.rglob("*.py")}
    assert len(texts) > 20
    assert [path for path, text in texts.items() if "shardline" in text] == []
    assert [path for path in FILES if PLUGIN.name in path.read_text()] == []


def test_shardline_and_the_logger_plugin_do_not_import_each_other():
    assert len(list(LOGGER.rglob("*.py"))) > 5
    assert [path for path in LOGGER.rglob("*.py") if imports_of(path)] == []
    assert [path for path in FILES if f"import {LOGGER.name}" in path.read_text()] == []
    assert [path for path in FILES if f"from {LOGGER.name}" in path.read_text()] == []


@pytest.mark.parametrize("path", IO, ids=[str(f.relative_to(SOURCE)) for f in IO])
def test_shardline_io_imports_the_standard_library_and_numpy_alone_by_python_3_9(path):
    """A training program of another framework has it in an environment of its own."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
    assert names <= sys.stdlib_module_names | {"numpy", "shardline_io"}


def test_shardline_io_is_imported_without_numpy_until_it_is_used():
    code = (
        "import shardline_io.errors, sys; print(sorted({'numpy', 'shardline'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
