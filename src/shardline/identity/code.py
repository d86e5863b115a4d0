"""Digest of the code that a stage runs: the import closure, parsed, without comments.

Modules are found and parsed, never imported, so this is cheap enough for the
Snakefile and safe for code whose import is slow or has side effects. Imports
made from computed names cannot be seen; docs/identity.md says what to do then.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from shardline.errors import ConfigError
from shardline.identity.syntax import Module, binary_module, parse_module

LIBRARY = Path(__file__).parents[2]  # the folder that holds the package shardline
INSTALLED = {"site-packages", "dist-packages"}  # folders whose packages count by version
_NO_FOLDER = (
    "#",
    "import ",
    "import\t",
)  # lines of a .pth file that Python's `site` reads otherwise
_SUFFIXES = (*EXTENSION_SUFFIXES, ".py")  # in the order in which Python looks

Closure = tuple[dict[str, dict[str, str]], frozenset[str]]


def import_roots(workdir: Path) -> tuple[Path, ...]:
    """Return the folders that hold a project's own code, in import order.

    These are the working directory, the folders of PYTHONPATH and those of
    editable installs; what is installed counts through the environment digest.
    `sys.path` would not do: Snakemake adds its scripts' folders to it in jobs
    only, and a job must find the identity that the parse found.
    """
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    stdlib = {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")}
    entries: list[str | Path] = [workdir, *named, *_editable_folders()]
    roots: list[Path] = []
    for entry in entries:
        path = (workdir / entry).resolve()
        if path.is_dir() and path.name not in INSTALLED and path not in {*stdlib, *roots}:
            roots.append(path)
    return tuple(roots)


def _editable_folders() -> Iterator[Path]:
    """Yield what editable installs add: lines of `.pth` files, or an import hook's mapping."""
    for folder in {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")}:
        for file in sorted(folder.glob("*.pth")):
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            named = (line.strip() for line in lines if not line.startswith(_NO_FOLDER))
            yield from (folder / line for line in named if line)
    for finder in sys.meta_path:
        module = getattr(finder, "__module__", "")
        if module.startswith("__editable__"):
            mapping = getattr(sys.modules[module], "MAPPING", {})
            yield from (Path(target).parent for target in mapping.values())


@dataclass
class CodeIndex:
    """Finds and digests modules below the import roots, each parsed once.

    Attributes:
        roots: folders that are searched for a module, in import order.
        main: the script that Python would run as `__main__`, if that is what is digested.
    """

    roots: Sequence[Path]
    main: Path | None = None
    _files: dict[str, Path | None] = field(default_factory=dict)
    _modules: dict[str, Module] = field(default_factory=dict)
    _closures: dict[tuple[str, ...], Closure] = field(default_factory=dict)

    def find(self, name: str) -> Path | None:
        """Return the file of a dotted module name, or None if it is not project code."""
        if name == "__main__" and self.main:
            return self.main
        if name not in self._files:
            # wherever shardline is installed, it is ours and counts by file
            is_ours = name.partition(".")[0] == "shardline"
            roots = (LIBRARY,) if is_ours else self.roots
            self._files[name] = next((f for root in roots if (f := _module_file(root, name))), None)
        return self._files[name]

    def module(self, name: str) -> Module:
        """Return a project module, parsed.

        Raises:
            ConfigError: the file cannot be read or is not valid Python; the
                message names file and line.
        """
        if name not in self._modules:
            path = self.find(name)
            assert path is not None, f"{name} is not project code"
            self._modules[name] = _read_module(path, name)
        return self._modules[name]

    def closure(self, *entries: str) -> Closure:
        """Digest every project module that the entry modules import, directly or not.

        Args:
            entries: dotted module names; those that are not project code count
                as third-party imports.

        Returns:
            The definitions' digests by module, and the top-level names of the
            third-party packages that these modules import.
        """
        key = tuple(sorted(set(entries)))
        if key not in self._closures:
            self._closures[key] = self._closure(key)
        return self._closures[key]

    def _closure(self, entries: tuple[str, ...]) -> Closure:
        code: dict[str, dict[str, str]] = {}
        seen: set[str] = set()
        pending = list(entries)
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            pending.extend(_parents(name))
            # `from package import name` is looked up as package.name, which may be no module
            if self.find(name) is not None:
                module = self.module(name)
                code[name] = module.definitions
                pending.extend(module.imports)
        # in one order, so that two processes write the same bytes
        return dict(sorted(code.items())), frozenset(
            _tops(seen) - _tops(code) - sys.stdlib_module_names
        )


def _tops(names: Sequence[str] | set[str] | dict[str, dict[str, str]]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _parents(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _module_file(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    beside = (base.with_name(base.name + suffix) for suffix in _SUFFIXES)
    return next((path for path in (base / "__init__.py", *beside) if path.is_file()), None)


def _read_module(path: Path, name: str) -> Module:
    try:
        content = path.read_bytes()
        if path.suffix != ".py":
            return binary_module(content)
        return parse_module(content, name, is_package=path.name == "__init__.py")
    except OSError as error:
        found, line = f"cannot be read ({error.strerror})", ""
    except (SyntaxError, ValueError, RecursionError) as error:
        found = f"not valid Python ({getattr(error, 'msg', error)})"
        line = f", line {getattr(error, 'lineno', None) or 1}"
    raise ConfigError(
        f"{path}{line}: {found}; mend it before the pipeline can tell what it would change"
    )
