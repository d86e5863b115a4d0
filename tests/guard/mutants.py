"""How strong the cases are: `python -m tests.guard.mutants --seed 1 --count 100` changes the code and compares.

A mutant is one small change of the data, training or checkpoint code: another comparison or arithmetic operator,
a number off by one, a negated condition, a statement left out, two arguments swapped. Those cases are run that
execute the line, by the jobs of `driver.py`, and their values are compared with those of the unchanged code as
the guard compares two versions. A mutant that makes a case fail is caught as well: the guard's new side fails.

What no value can depend on is not mutated: messages, raised errors, logging, clocks, annotations.
"""

import argparse
import ast
import difflib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.guard import driver
from tests.guard.compare import differences
from tests.guard.values import read_dataset, read_run

CASES = Path(__file__).parent / "cases"
LOCK = driver.ROOT / "requirements.lock"
MODULES = (
    "data/build", "data/datamodule", "data/raw_files", "data/rows", "shardline_io/order/*", "data/shard_format",
    "data/shard_map", "data/splits", "data/moments", "data/statistics", "data/stream", "data/window_stream",
    "data/windowmap", "data/sources/*",
    "config/resolved",
    "training/step_all_reduce", "training/divergence", "training/fit", "training/interventions", "training/model",
    "training/models/*", "training/optim", "training/optimizer_steps", "training/sharding", "training/stop_agreement",
    "training/strategies", "training/trainer",
    "checkpoints/*",
)  # fmt: skip
PRELOADED = (
    "torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "pytorch_lightning", "torchmetrics",
    "safetensors.torch", "numpy", "pyarrow.csv", "pyarrow.dataset", "pyarrow.parquet", "deltalake", "PIL.Image",
    "sklearn.datasets", "jsonschema", "filelock", "fsspec", "blake3", "s3fs", "rich.progress", "yaml", "psutil",
)  # fmt: skip
# of calls whose arguments and effects are words, clocks or the screen
_WORDS = ("print", "logging", "warnings", "time", "_LOG")

# ---- the changes

_COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,  # codespell:ignore notin
}  # fmt: skip
_COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitXor: ast.BitOr,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change.

    Attributes:
        module: dotted name.
        first, last: lines of what is changed, 0 and 0 where that is run at the module's import.
        line: where it is, for people.
        code: of the changed module.
    """

    module: str
    line: int
    first: int
    last: int
    what: str
    tree: ast.Module

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.what}"


def files_of(module: str) -> list[Path]:
    """Return the files that a name of `MODULES` stands for."""
    folder = driver.SRC if module.startswith("shardline_io/") else driver.SRC / "shardline"
    found = sorted(folder.glob(f"{module}.py"))
    assert found, module
    return found


def mutants_of(path: Path) -> Iterator[Callable[[], Mutant]]:
    """Give what makes each mutant of a file."""
    tree = ast.parse(path.read_text())
    number = 0
    for place, (node, statement) in enumerate(_sites(tree)):
        for change in range(len(_changes(node, statement))):
            number += 1
            yield lambda place=place, change=change: _mutant(path, place, change)


def _mutant(path: Path, place: int, change: int) -> Mutant:
    tree = ast.parse(path.read_text())
    node, statement = list(_sites(tree))[place]
    before = ast.unparse(node)
    _changes(node, statement)[change]()
    after = ast.unparse(node)
    ast.fix_missing_locations(tree)
    module = ".".join(path.relative_to(driver.SRC).with_suffix("").parts).removesuffix(".__init__")
    inside = _is_in_function(tree, statement)
    head = statement.body[0].lineno - 1 if hasattr(statement, "body") else statement.end_lineno
    return Mutant(
        module=module,
        line=node.lineno,
        first=statement.lineno if inside else 0,
        last=max(statement.lineno, head or 0) if inside else 0,
        what=_told(before, after),
        tree=tree,
    )


def _told(before: str, after: str) -> str:
    """Return the lines that differ."""
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    old, new = (" ".join(x[2:].strip() for x in lines if x.startswith(sign)) for sign in "-+")
    return f"{_short(old)} -> {_short(new)}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 70 else f"{text[:70]}..."


def _is_in_function(tree: ast.Module, statement: ast.stmt) -> bool:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return any(statement in ast.walk(child) for f in functions for child in f.body)


def _sites(tree: ast.Module) -> Iterator[tuple[Any, ast.stmt]]:
    """Give each node that may be changed, with the statement that it is part of."""

    def visit(node: ast.AST, statement: ast.stmt | None) -> Iterator[tuple[Any, ast.stmt]]:
        if isinstance(
            node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert | ast.alias
        ):
            return
        if isinstance(node, ast.Expr) and (
            isinstance(node.value, ast.Constant) or _is_words(node.value)
        ):
            return
        if isinstance(node, ast.Call) and _is_words(node):
            return
        statement = node if isinstance(node, ast.stmt) else statement
        if statement is not None:
            yield node, statement
        for name, value in ast.iter_fields(node):
            if name in (
                "annotation",
                "returns",
                "decorator_list",
                "type_comment",
                "bases",
                "keywords_of_class",
            ):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from visit(child, statement)

    yield from visit(tree, None)


def _is_words(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[0] in _WORDS


def _changes(node: Any, statement: ast.stmt) -> list[Callable[[], object]]:
    """Return what changes a node in place, each in one way."""
    found: list[Callable[[], object]] = []

    def replace(field: str, value: Any) -> None:
        found.append(lambda: setattr(node, field, value))

    if isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARED:
        replace("ops", [_COMPARED[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _COMPUTED:
        replace("op", _COMPUTED[type(node.op)]())
    if isinstance(node, ast.BoolOp):
        replace("op", ast.Or() if isinstance(node.op, ast.And) else ast.And())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        replace("op", ast.UAdd() if isinstance(node.op, ast.USub) else ast.Not())
        if isinstance(node.op, ast.Not):
            found[-1] = lambda: setattr(node, "operand", ast.UnaryOp(ast.Not(), node.operand))
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        replace("value", not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        replace("value", node.value + 1)
        replace("value", node.value - 1)
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        replace("test", ast.UnaryOp(ast.Not(), node.test))
    if (
        isinstance(node, ast.Call)
        and len(node.args) > 1
        and ast.unparse(node.func) not in ("min", "max")
    ):
        has_star = any(isinstance(argument, ast.Starred) for argument in node.args[:2])
        if not has_star:
            replace("args", [node.args[1], node.args[0], *node.args[2:]])
    if isinstance(node, ast.Return) and node.value is not None:
        replace("value", None)
    for name in ("body", "orelse", "finalbody"):
        body = getattr(node, name, None)
        if isinstance(body, list):
            found += [
                lambda body=body, i=i: body.__setitem__(i, ast.copy_location(ast.Pass(), body[i]))
                for i, child in enumerate(body)
                if isinstance(child, ast.Expr | ast.AugAssign)
                and not isinstance(getattr(child, "value", None), ast.Constant)
                and not (isinstance(child, ast.Expr) and _is_words(child.value))
            ]
    return found


# ---- the cases


@dataclass(frozen=True, order=True)
class Unit:
    """What is run and compared at a time: a dataset's jobs, or a run's."""

    project: str
    stage: str
    name: str


@dataclass
class Known:
    """What the unchanged code makes of a unit.

    Attributes:
        values: of its results.
        lines: executed lines by file.
    """

    values: dict[str, Any]
    lines: dict[str, set[int]]
    seconds: float


class Cases:
    """The projects of a format, with their datasets built once by the unchanged code.

    Args:
        folder: where they are built.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.known: dict[Unit, Known] = {}
        self._dataset: dict[Unit, str] = {}

    @classmethod
    def prepared(cls, folder: Path, files: frozenset[str]) -> "Cases":
        """Return the cases of a folder, made now if they are not there."""
        path = folder / "cases.pickle"
        if not path.exists():
            cases = cls(folder)
            cases.prepare(files)
            path.write_bytes(pickle.dumps(cases))
        found: Cases = pickle.loads(path.read_bytes())
        return found

    def prepare(self, files: frozenset[str]) -> None:
        """Run all units by the unchanged code, tracing some files."""
        for path in sorted(CASES.glob("*/*/config/config.yaml")):
            project = path.parents[1]
            shutil.copytree(
                project, self._folder / project.name, ignore=shutil.ignore_patterns("__pycache__")
            )
            listed = self._folder / f"{project.name}.json"
            assert not driver.forked(lambda p=project.name, to=listed: self._list(p, to)), (
                f"{project} has an error"
            )
            runs = json.loads(listed.read_text())
            for name in dict.fromkeys(runs.values()):
                self._learn(Unit(project.name, "data", name), files)
            for run, dataset in runs.items():
                unit = Unit(project.name, "train", run)
                self._dataset[unit] = dataset
                self._learn(unit, files)

    def _list(self, project: str, to: Path) -> None:
        driver.import_shardline()
        from shardline.config.load import load_project
        from shardline.config.scripts import is_script

        os.chdir(self._folder / project)
        runs = load_project(driver.config_of(Path())).runs.values()
        to.write_text(
            json.dumps({r.names[0]: r.dataset.name for r in runs if not is_script(r.model_class)})
        )

    def _learn(self, unit: Unit, files: frozenset[str]) -> None:
        values = Path(tempfile.mkdtemp(dir=self._folder))
        started = time.monotonic()
        # a dataset stays in the project, where its runs find it
        folder = self._folder / unit.project
        if unit.stage == "train":
            folder = self.copy(unit)
        code = driver.forked(
            lambda: self.run(
                unit, folder, values / "values.json", driver.Tracer(files, values / "lines")
            ),
            log=values / "log",
        )
        assert not code, f"{unit} ended with {code}: {(values / 'log').read_text()[-3000:]}"
        lines: dict[str, set[int]] = defaultdict(set)
        for file, line in map(json.loads, (values / "lines").read_text().splitlines()):
            lines[file].add(line)
        found = json.loads((values / "values.json").read_text())
        self.known[unit] = Known(found, lines, time.monotonic() - started)
        print(
            f"{unit.project} {unit.stage} {unit.name}: {self.known[unit].seconds:.1f} s", flush=True
        )

    def copy(self, unit: Unit) -> Path:
        """Return a copy of a unit's project, with the datasets that are built."""
        place = Path(tempfile.mkdtemp(dir=self._folder))
        return Path(shutil.copytree(self._folder / unit.project, place / unit.project))

    def run(self, unit: Unit, folder: Path, to: Path, tracer: driver.Tracer | None = None) -> None:
        """Do a unit's jobs in this process, and write its values."""
        driver.import_shardline()
        os.chdir(folder)
        config = driver.config_of(folder)
        if tracer:
            tracer.begin()
        if unit.stage == "data":
            driver.build(config, unit.name)
        else:
            driver.train(config, unit.name, tracer)
        if tracer:
            tracer.leave()
        from shardline.config.load import load_project

        project = load_project(config)
        if unit.stage == "data":
            id = next(one.id for one in project.datasets.values() if one.name == unit.name)
            results = [read_dataset(folder, id, unit.name)]
        else:
            run = next(one for one in project.runs.values() if one.names[0] == unit.name)
            results = read_run(folder, run.id, unit.name, run.dataset.name)
        to.write_text(json.dumps({result.stage: result.values for result in results}))

    def executing(self, mutant: Mutant, most: int) -> list[Unit]:
        """Return units that execute a mutant, the quickest first; each adds lines of its module to the others."""
        path = str(driver.SRC / (mutant.module.replace(".", "/") + ".py"))
        changed = set(range(mutant.first, mutant.last + 1))
        left = {
            unit: here
            for unit, known in self.known.items()
            if (here := known.lines.get(path)) and (not mutant.first or here & changed)
        }
        chosen: list[Unit] = []
        seen: set[int] = set()
        while left and len(chosen) < most:
            unit = max(left, key=lambda unit: (len(left[unit] - seen), len(left[unit])))
            seen |= left.pop(unit)
            chosen.append(unit)
        return sorted(chosen, key=lambda unit: self.known[unit].seconds)

    def shown(self, mutant: Mutant, units: list[Unit]) -> str:
        """Return which unit shows a mutant, and how; nothing if none does."""
        place = Path(tempfile.mkdtemp(dir=self._folder))

        def work() -> int:
            os.setsid()
            code = compile(mutant.tree, str(driver.SRC / mutant.module.replace(".", "/")), "exec")
            sys.meta_path.insert(0, driver.Mutating(mutant.module, code))
            driver.import_shardline()
            for unit in units:
                if found := self._difference(unit, place):
                    (place / "found").write_text(
                        f"{unit.project} {unit.stage} {unit.name}: {found}"
                    )
                    return 0
            return 0

        code = driver.forked(work, log=place / "log")
        told = (place / "found").read_text() if (place / "found").exists() else ""
        shutil.rmtree(place)
        return told or (f"it fails at import: {code}" if code else "")

    def _difference(self, unit: Unit, place: Path) -> str:
        known, folder, to = self.known[unit], self.copy(unit), place / "values.json"
        log = place / f"{unit.stage}-{unit.name}"
        if unit.stage == "data":
            shutil.rmtree(folder / "results", ignore_errors=True)
            shutil.rmtree(folder / "store", ignore_errors=True)
        limit_s = int(60 + 10 * known.seconds)
        code = driver.forked(lambda: self.run(unit, folder, to), limit_s=limit_s, log=log)
        shutil.rmtree(folder.parent)
        if code == -signal.SIGALRM:
            return "it hangs"
        if code:
            last = log.read_text(errors="replace").strip().splitlines()[-1:]
            return f"it fails: {' '.join(last)[:150]}"
        return next(differences(known.values, json.loads(to.read_text())), "")


def main() -> None:
    """Print each mutant with what shows it, then the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100, help="mutants that some case executes")
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument(
        "--every", type=int, default=1, help="take every so many, for calls side by side"
    )
    parser.add_argument("--only", type=int, nargs="*", help="numbers of mutants to try again")
    parser.add_argument("--units", type=int, default=6, help="datasets and runs to try a mutant on")
    parser.add_argument("--folder", type=Path, required=True, help="where the cases are kept")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(driver.SRC), str(driver.ROOT)])
    driver.preload(PRELOADED)
    paths = [path for module in MODULES for path in files_of(module)]
    makers = [make for path in paths for make in mutants_of(path)]
    random.Random(options.seed).shuffle(makers)
    options.folder.mkdir(parents=True, exist_ok=True)
    cases = Cases.prepared(options.folder, frozenset(map(str, paths)))
    counts: Counter[str] = Counter()
    for number in options.only or range(options.first, len(makers), options.every):
        mutant = makers[number]()
        units = cases.executing(mutant, options.units)
        found = cases.shown(mutant, units) if units else ""
        kind = "caught" if found else "survived" if units else "not executed"
        counts[kind] += 1
        print(f"{number} {kind}: {mutant}{f' ({found})' if found else ''}", flush=True)
        if counts["caught"] + counts["survived"] == options.count:
            break
    print(dict(counts))


if __name__ == "__main__":
    main()
