"""The modules of a project, each found as Python finds it and parsed once.

The modules are parsed, not imported. So this is fast enough for the Snakefile, and safe for code whose
import is slow or has side effects. Imports of computed names are not seen; docs/concepts/identity.md
lists the remedies.
"""

import ast
import itertools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from pathlib import Path
from typing import TypeVar

from shardline.core.errors import ConfigError
from shardline.identity.literals import Literals
from shardline.identity.module_imports import Module, parse_module
from shardline.identity.outline import Outline, compiled_outline, outline_of

LIBRARY = Path(__file__).parents[2]  # the folder that contains the packages of `OURS`
OURS = ("shardline", "shardline_io")
# Folders of installed packages, which count by version.
INSTALLED = {"site-packages", "dist-packages"}
# Lines of a .pth file that Python's `site` does not read as a folder.
_NO_FOLDER = ("#", "import ", "import\t")
_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES, *BYTECODE_SUFFIXES)  # in Python's order
_LONGEST_NAME = 200  # of a module; a longer text is not a name

Folders = tuple[Path, ...]
Parsed = TypeVar("Parsed")
Closure = tuple[frozenset[str], frozenset[str]]


def import_roots(workdir: Path) -> tuple[Path, ...]:
    """Return the folders of a project's own code, in import order.

    These are the working directory, the folders of PYTHONPATH and the folders of editable installs.
    Installed packages count through the environment digest. `sys.path` is not used, because Snakemake
    adds the folders of its scripts in jobs only, and a job must compute the same identity as the Snakefile.
    """
    named = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    entries: list[str | Path] = [workdir, *named, *_editable_folders()]
    roots: list[Path] = []
    for entry in entries:
        path = (workdir / entry).resolve()
        if holds_own_code(path) and path not in roots:
            roots.append(path)
    return tuple(roots)


def holds_own_code(path: Path) -> bool:
    """Return whether a folder contains modules of the project, not installed packages."""
    stdlib = {Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")}
    # os.path.isdir accepts any text as a path, even one that is too long
    return os.path.isdir(path) and path.name not in INSTALLED and path not in stdlib  # noqa: PTH112


def _editable_folders() -> Iterator[Path]:
    """Yield the folders of editable installs, from `.pth` files or the mapping of an import hook."""
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


@dataclass(frozen=True)
class Found:
    """Module or package that was found.

    Attributes:
        file: file of the module, `__init__` for a package; None for a namespace package.
        folders: folders of a package's submodules; empty for a module.
    """

    file: Path | None
    folders: tuple[Path, ...]


def find_in(folders: Sequence[Path], name: str, *, top: bool) -> Found | None:
    """Return the module or package that Python imports for a name without dots.

    The first package with an `__init__` or module wins. If there is none, the folders of this name
    without `__init__` are one namespace package.

    Args:
        folders: folders to search, as in `sys.path` or a package's `__path__`.
        name: the name.
        top: whether the name is top-level, so that an installed module or one of the standard
            library wins over a namespace package.
    """
    portions = []
    for folder in folders:
        base = folder / name
        is_folder = base.is_dir()
        if is_folder and (init := _with_suffix(base / "__init__")):
            return Found(init, (base,))
        if file := _with_suffix(base):
            return Found(file, ())
        if is_folder:
            portions.append(base)
    if not portions or (top and _is_installed(name)):
        return None
    return Found(None, tuple(portions))


def portions_of(folders: Sequence[Path], name: str) -> tuple[Path, ...]:
    """Return all folders of a name, as `pkgutil.extend_path` does."""
    return tuple(folder / name for folder in folders if (folder / name).is_dir())


def _with_suffix(base: Path) -> Path | None:
    beside = (base.with_name(base.name + suffix) for suffix in _SUFFIXES)
    return next((path for path in beside if path.is_file()), None)


@cache
def _is_installed(name: str) -> bool:
    """Return whether a regular package or module of this name is installed."""
    if name in sys.stdlib_module_names:
        return True
    folders = {Path(sysconfig.get_path(key)) for key in ("purelib", "platlib")}
    return any(
        _with_suffix(folder / name) or _with_suffix(folder / name / "__init__")
        for folder in folders
    )


@dataclass
class CodeIndex:
    """Index of the modules below the import roots, each parsed once.

    Attributes:
        roots: folders to search for a module, in import order.
        main: script that Python runs as `__main__`, if the code is a script.
        workdir: folder in which the code runs; by default the first root.
    """

    roots: Sequence[Path]
    main: Path | None = None
    workdir: Path | None = None
    _found: dict[tuple[Folders, str], Found | None] = field(default_factory=dict)
    _modules: dict[tuple[Path, str], Module] = field(default_factory=dict)
    _closures: dict[frozenset[str], Closure] = field(default_factory=dict)
    _outlines: dict[tuple[Path, str, bool], Outline] = field(default_factory=dict)

    def find(self, name: str) -> Path | None:
        """Return the file of a module by its dotted name; None if the module is not project code."""
        found = self.locate(tuple(self.roots), name)
        return found.file if found else None

    def module(self, name: str) -> Module:
        """Return a parsed project module.

        Raises:
            ConfigError: the file cannot be read or is not valid Python; the message names file and line.
        """
        return self._module(self._own(name), name)

    def names(self, name: str) -> set[str]:
        """Return the names that a project module binds, and `*` if it may bind others.

        Raises:
            ConfigError: see `module`.
        """
        outline = self.outline(self._own(name), name, is_main=False)
        is_open = outline.binary or "__getattr__" in outline.symbols or self.module(name).stars
        return ({*outline.symbols} | ({"*"} if is_open else set())) - {"__doc__"}

    def _own(self, name: str) -> Path:
        path = self.find(name)
        assert path is not None, f"{name} is not project code"
        return path

    def closure(self, *entries: str) -> Closure:
        """Return the project modules that entry modules import, directly or indirectly.

        Folders that these modules add to `sys.path` are searched too. Later import roots are then
        searched separately, since code may remove an earlier one. If two modules have one name, both
        count, since the time of the import decides which one Python imports.

        Args:
            entries: dotted module names; a module outside the project counts as a third-party import.

        Returns:
            Dotted names of the modules, and top-level names of the third-party packages that they import.
        """
        key = frozenset(entries)
        if key not in self._closures:
            searched: list[Folders] = [tuple(self.roots)]
            alone: Folders = ()
            while True:
                self._closures[key], added, later = self._closure(key, searched, alone)
                new = [(folder,) for folder in added if (folder,) not in searched]
                if not new and later == alone:
                    break
                searched, alone = [*searched, *new], later
        return self._closures[key]

    def outline(self, path: Path, name: str, *, is_main: bool) -> Outline:
        """Return the definitions and statements of a module.

        Args:
            path: file of the module.
            name: dotted name of the module.
            is_main: whether the module may run as `__main__`.
        """
        key = (path, name, is_main)
        if key not in self._outlines:
            self._outlines[key] = _parsed(path, lambda text: self._outline(text, *key))
        return self._outlines[key]

    def _outline(self, content: bytes, path: Path, name: str, is_main: bool) -> Outline:
        if path.suffix != ".py":
            return compiled_outline(content, name)
        return outline_of(
            content,
            name,
            is_package=path.name == "__init__.py",
            is_main=is_main,
            is_own=lambda top: self.find(top) is not None,
        )

    def folders_added_by(self, path: Path, name: str) -> Folders:
        """Return the folders that a module adds to `sys.path`."""
        if not self.edits_sys_path(path, name):
            return ()
        return tuple(self._added_roots(self._module(path, name), path))

    def edits_sys_path(self, path: Path, name: str) -> bool:
        """Return whether a module changes `sys.path` in any way; call `outline` first."""
        source = self._outlines.get((path, name, False)) or self._outlines[path, name, True]
        if not any("path" in line or "addsitedir" in line for line in source.source):
            return False
        return self._module(path, name).edits_sys_path

    def _closure(
        self, entries: frozenset[str], searched: list[Folders], alone: Folders
    ) -> tuple[Closure, Folders, Folders]:
        """Compute the closure for some search folders.

        Returns:
            The closure, the folders that its modules add to `sys.path`, and the roots to search separately.
        """
        edits_sys_path = False
        added: dict[Path, None] = {}
        own: set[str] = set()
        seen: set[str] = set()
        pending = list(entries)
        while pending:
            name = pending.pop()
            if name in seen:
                continue
            seen.add(name)
            pending.extend(with_parents(name))
            # `from package import name` is searched as package.name, which may not be a module
            for file in self.files_of(name, searched, alone).values():
                module = self._module(file, name)
                own.add(name)
                edits_sys_path |= module.edits_sys_path
                pending.extend(module.imports)
                pending.extend(self._exported(module, searched, alone))
                added.update(dict.fromkeys(self._added_roots(module, file)))
        third_party = _tops(seen) - _tops(own) - sys.stdlib_module_names
        closure = frozenset(own), frozenset(filter(str.isidentifier, third_party))
        later = tuple(self.roots[1:]) if alone or edits_sys_path else ()
        return closure, tuple(added), later

    def _exported(self, module: Module, searched: list[Folders], alone: Folders) -> Iterator[str]:
        """Yield the submodules that `from package import *` may import: the names in `__all__`."""
        for package in sorted(module.stars):
            for file in self.files_of(package, searched, alone).values():
                exports = sorted(self._module(file, package).exports)
                yield from (f"{package}.{name}" for name in exports)

    def locate(self, folders: Folders, name: str) -> Found | None:
        """Return the module of a dotted name whose first part is searched in some folders."""
        if name == "__main__" and self.main:
            return Found(self.main, ())
        if (folders, name) not in self._found:
            parent, _, leaf = name.rpartition(".")
            if not leaf or os.sep in leaf or len(leaf) > _LONGEST_NAME:
                found = None
            elif parent:
                within = self._folders_of(folders, parent)
                found = find_in(within, leaf, top=False)
            else:
                # Shardline's modules count by file wherever Shardline is installed
                found = find_in((LIBRARY,) if name in OURS else folders, name, top=True)
            self._found[folders, name] = found
        return self._found[folders, name]

    def files_of(
        self, name: str, searched: Sequence[Folders], alone: Folders = ()
    ) -> dict[int, Path]:
        """Return the files of a dotted name by the number of the list of folders that contains each.

        Args:
            name: dotted name of the module.
            searched: lists of folders; each contributes its file, even if another list has the same.
            alone: folders to search one by one afterwards, for other files.
        """
        found: dict[int, Path] = {}
        for number, folders in enumerate([*searched, *((folder,) for folder in alone)]):
            file = place.file if (place := self.locate(folders, name)) else None
            if file and (number < len(searched) or file not in found.values()):
                found[number] = file
        return found

    def _folders_of(self, folders: Folders, package: str) -> Folders:
        """Return a package's `__path__`."""
        found = self.locate(folders, package)
        if not found or not found.file or not found.folders:
            return found.folders if found else ()
        module = self._module(found.file, package)
        if module.own_path is None:
            return found.folders
        named = [self._evaluated([one], module, found.file) for one in module.own_path]
        if not all(named):  # by `pkgutil.extend_path`, or by code that is not understood
            parent, _, leaf = package.rpartition(".")
            around = self._folders_of(folders, parent) if parent else folders
            named.append(portions_of(around, leaf))
        return tuple(dict.fromkeys((*found.folders, *itertools.chain(*named))))

    def _added_roots(self, module: Module, file: Path) -> Iterator[Path]:
        roots = {Path(root).resolve() for root in self.roots} if module.sys_path else set()
        for folder in self._evaluated(module.sys_path, module, file):
            path = folder.resolve()
            if holds_own_code(path) and path not in roots:
                yield path

    def _evaluated(self, expressions: Sequence[ast.expr], module: Module, file: Path) -> Folders:
        """Return the folders that some expressions name in a module."""
        workdir = self.workdir or next(iter(self.roots), None)
        if not expressions or not workdir:
            return ()
        known = {"__file__": str(file), ".": str(workdir)}
        literals = Literals(bindings=module.bindings, known=known)
        # some texts may not be folders, which then contain no module
        texts = dict.fromkeys(
            t for one in expressions for t in literals.texts(one) if "\0" not in t
        )
        return tuple(workdir / text for text in texts)

    def _module(self, path: Path, name: str) -> Module:
        if (path, name) not in self._modules:
            self._modules[path, name] = _parsed(path, lambda text: _module_of(text, path, name))
        return self._modules[path, name]


def with_parents(name: str) -> list[str]:
    """Return the parent packages of a dotted name, outermost first, and the name itself."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _tops(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _module_of(content: bytes, path: Path, name: str) -> Module:
    if path.suffix != ".py":
        return Module()
    return parse_module(content, name, is_package=path.name == "__init__.py")


def _parsed(path: Path, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        return parse(path.read_bytes())
    except OSError as error:
        found, line = f"cannot be read ({error.strerror})", ""
    except (SyntaxError, ValueError, RecursionError) as error:
        found = f"not valid Python ({getattr(error, 'msg', error)})"
        line = f", line {getattr(error, 'lineno', None) or 1}"
    raise ConfigError(
        f"{path}{line}: {found}; fix it, so that the pipeline can find the results that it changes"
    )
