"""Imports point one way, and the Snakefile's never reach torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

# Each module may import those that stand before it (DESIGN.md, "The house").
LAYERS = [
    [
        "credentials",
        "errors",
        "lean_start",
        "masked_output",
        "secrets",
        "workflow",
        "studies",
        "visible",
    ],
    ["files", "identity", "elastic", "external", "splits", "noise", "started", "statistics"],
    ["config", "sources", "launch", "sampling", "shardfile", "progress", "seals", "watch_reads"],
    ["checkpoints"],
    [
        "rows",
        "shardmap",
        "windowmap",
        "ledger",
        "provenance",
        "metrics",
        "supervise",
        "attempts",
        "retries",
        "interventions",
        "goodput",
        "resources",
        "handover",
        "links",
        "accepted",
        "names",
        "storage",
        "environments",
        "certificates",
        "parts",
    ],
    [
        "agreement",
        "shards",
        "integrity",
        "streaming",
        "capacity",
        "checkpointing",
        "parallel",
        "sharding",
        "models",
        "optim",
        "divergence",
        "stepping",
        "modelling",
    ],
    [
        "datamodule",
        "trainer",
        "script",
        "stopwatch",
        "heartbeat",
        "stopping",
        "tracking",
        "actions",
        "pictures",
        "confusion",
    ],
    ["evidence"],
    ["scoring"],
    ["train", "evaluate"],
    ["charts", "report", "crate"],
    ["rehearse", "worker", "jobs", "states"],
    ["causes"],
    [
        "why",
        "garbage",
        "findings",
        "verify_store",
        "verify_runs",
        "verify",
        "rehearsals",
        "init",
    ],
    ["recorded", "selection", "repair", "accept"],
    ["replay", "differences", "lineage", "export", "drills", "opening"],
    ["display"],
    ["cli"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# The report reads files and nothing else of ours; parsing needs four modules alone.
ONLY = {
    "report": {
        "accepted",
        "errors",
        "files",
        "charts",
        "noise",
        "secrets",
        "studies",
        "visible",
        "workflow",
    },
    "charts": {"errors"},
    "config": {
        "credentials",
        "elastic",
        "errors",
        "identity",
        "external",
        "secrets",
        "studies",
        "workflow",
    },
    "elastic": {"errors"},
    "external": {"errors"},
    "identity": {"errors"},
}


def imports_of(path: Path) -> set[str]:
    """Return the top-level shardline modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "shardline":
            parts = (node.module or "").split(".")
            found |= (
                {parts[1]} if len(parts) > 1 else {a.name for a in node.names} - {"__version__"}
            )
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.split(".")[1]
                for alias in node.names
                if alias.name.startswith("shardline.")
            }
    return found


FILES = sorted((SOURCE / "shardline").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=[str(f.relative_to(SOURCE)) for f in FILES])
def test_imports_point_one_way(path):
    mine = path.relative_to(SOURCE / "shardline").parts[0].removesuffix(".py")
    if mine == "__init__":
        assert not imports_of(path)
        return
    assert mine in LEVEL, f"{mine} has no place in the layers; give it one"
    others = imports_of(path) - {mine}
    assert {name for name in others if LEVEL[name] > LEVEL[mine]} == set()
    if mine in ONLY:
        assert others <= ONLY[mine]


@pytest.mark.parametrize("module", ["shardline.config", "shardline.pipeline", "shardline.cli"])
def test_what_the_snakefile_and_the_command_import_stays_light(module):
    heavy = "{'torch', 'pytorch_lightning', 'pandas', 'altair', 'sklearn', 'snakemake', 'rattler', 'detect_secrets'}"
    code = f"import {module}, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_shardline_and_the_executor_plugin_do_not_import_each_other():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if "shardline" in path.relative_to(SOURCE).parts[0] and "executor" not in str(path):
            assert "snakemake_executor_plugin_azureml" not in text


def test_the_readme_names_every_file_of_the_house():
    repository = SOURCE.parent
    readme = (repository / "README.md").read_text()
    files = [
        p
        for folder in ("src/shardline", "rules", "scripts", "benchmarks")
        for p in (repository / folder).rglob("*")
    ]
    modules = [p for p in files if p.suffix in (".py", ".smk") and p.name != "__init__.py"]
    listed = [
        p for p in modules if not {"report", "reader"} & set(p.parts)
    ]  # a line for each package
    names = [
        str(p.relative_to(SOURCE / "shardline" if SOURCE in p.parents else repository))
        for p in listed
    ]
    assert len(names) > 40
    assert [name for name in names if f"{name} " not in readme and f"{name}\n" not in readme] == []
