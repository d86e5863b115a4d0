"""Definitions that an entry point can reach, found by following references from the entry point."""

import ast
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shardline.identity.code_index import OURS, CodeIndex, Folders, with_parents
from shardline.identity.names import Imported, ImportRun, Note, Ref, Written, notes_of_name
from shardline.identity.outline import Importing, Outline, Unit
from shardline.identity.purity import INERT_PACKAGES
from shardline.identity.resolution import Defined, Hooks, Named, Part, Resolver, Whole
from shardline.identity.versions import is_public

Key = tuple[str, int]  # label of a module, place of a unit in it
_OPTIONS = {"annotations", "docstrings", "text", "main"}


@dataclass
class Program:
    """Modules of a program, found in several lists of folders; all modules of one name count.

    Attributes:
        index: index that finds and parses modules.
        searched: lists of folders; the label of a module in a later list ends in its number.
        alone: import roots to search separately, since code edits `sys.path` and may remove an
            earlier root; they count only for files that were not found before.
        is_main: whether every module may run as `__main__`.
        files: files of the found modules by label.
    """

    index: CodeIndex
    searched: list[Folders]
    alone: Folders = ()
    is_main: bool = False
    files: dict[str, Path] = field(default_factory=dict)
    _found: dict[str, dict[str, Outline]] = field(default_factory=dict)
    _folders: dict[str, bool] = field(default_factory=dict)

    def find(self, name: str) -> dict[str, Outline]:
        """Return the modules of a dotted name by label."""
        if name not in self._found:
            self._found[name] = {}
            for number, file in self.index.files_of(name, self.searched, self.alone).items():
                label = f"{name} ({number})" if number else name
                self.files[label] = file
                main = self.is_main or name == "__main__"
                self._found[name][label] = self.index.outline(file, name, is_main=main)
        return self._found[name]

    def edits_sys_path(self, labels: Iterable[str]) -> bool:
        """Return whether any of some modules changes `sys.path`."""
        names = ((self.files[label], label.partition(" (")[0]) for label in labels)
        return any(self.index.edits_sys_path(file, name) for file, name in names)

    def in_later_roots(self, labels: Collection[str]) -> list[str]:
        """Return the modules in later import roots, with the root's number, if a module edits `sys.path`.

        The edit may decide whether Python still finds such a module.
        """
        if not self.edits_sys_path(labels):
            return []
        numbers = {label: self._root_number(label) for label in labels}
        return [f"{label} in root {number}" for label, number in sorted(numbers.items()) if number]

    def _root_number(self, label: str) -> int:
        """Return the number of the import root that contains a module; 0 if none does."""
        file, roots = self.files[label], self.searched[0]
        depth = label.partition(" ")[0].count(".") + (file.stem == "__init__")
        root = file.parents[depth] if depth < len(file.parents) else None
        return roots.index(root) if root in roots else 0

    def is_package(self, name: str) -> bool:
        """Return whether a dotted name is a package, with or without `__init__`."""
        places = [self.index.locate(folders, name) for folders in self.searched]
        return any(
            place and (not place.file or place.file.name == "__init__.py") for place in places
        )

    def is_folder(self, name: str) -> bool:
        """Return whether a dotted name is a package without `__init__`."""
        if name not in self._folders:
            places = (self.index.locate(folders, name) for folders in self.searched)
            self._folders[name] = any(place and not place.file for place in places)
        return self._folders[name]


@dataclass
class Reach:
    """Everything that a program may execute, as far as its source shows.

    Attributes:
        program: modules of the program.
        options: what counts in addition: `annotations`, `docstrings`, `text`, `main`.
        run: executed modules by label, in the order in which they were found.
        units: reached definitions and statements.
        whole: reasons why modules count as a whole, by label.
        ordered: labels of modules in which the order of all definitions counts.
        third_party: dotted names of imported modules outside the project.
        escaped: labels of modules that code uses as values.
        shipped: dotted names in Shardline that code refers to.
        broken: imported names and modules that their project module or package does not have.
        flags: effects of constructs on the whole program, see `names`.
    """

    program: Program
    options: frozenset[str]
    run: dict[str, Outline] = field(default_factory=dict)
    units: dict[Key, None] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    ordered: set[str] = field(default_factory=set)
    escaped: set[str] = field(default_factory=set)
    third_party: set[str] = field(default_factory=set)
    shipped: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    flags: dict[str, str] = field(default_factory=dict)
    _pending: list[Key] = field(default_factory=list)
    _waiting: list[str] = field(default_factory=list)  # modules that are not executed yet

    def __post_init__(self) -> None:
        self.resolver = Resolver(self.program.find, self.program.is_folder)
        self.hooks = Hooks(self.resolver)

    @property
    def wanted(self) -> frozenset[str]:
        """Options, with those that the reached code requires."""
        return self.options | (_OPTIONS & self.flags.keys())

    def written(self, key: Key) -> Written:
        """Return a unit's text and references."""
        return self.outline(key[0]).written(key[1], self.options)

    def outline(self, label: str) -> Outline:
        """Return a module by its label."""
        return self.program.find(label.partition(" (")[0])[label]

    def unit(self, key: Key) -> Unit:
        """Return a unit by its key."""
        return self.outline(key[0]).units[key[1]]

    def resolve(self, label: str, ref: Ref) -> tuple[Part, ...]:
        """Return the parts that a reference in a module resolves to."""
        return self.resolver.resolve(label, self.outline(label), ref)

    def follow(self, parts: Iterable[Part]) -> None:
        """Reach some parts, and everything that they reach."""
        for part in parts:
            self._reach(part, "", 0)
        self._close()

    # --- modules ------------------------------------------------------------------------------

    def import_modules(self, names: Iterable[str]) -> None:
        """Execute modules and their parent packages."""
        for name in names:
            for one in with_parents(name):
                if is_public(one):
                    continue
                found = self.program.find(one)
                for label, outline in found.items():
                    if label not in self.run:
                        self.run[label] = outline
                        self._waiting.append(label)
                if not found and not self.program.is_folder(one):
                    self.third_party.add(one)
                    package, _, leaf = one.rpartition(".")
                    # `runpy.run_module` executes a module, or the `__main__` of a package
                    if leaf == "__main__" and self.program.is_package(package):
                        self.broken.add(one)

    def _execute(self, label: str, outline: Outline) -> None:
        for one in outline.importing:
            self.import_modules(one.modules)
            self._note_missing(one, outline)
            self._check(one)
            if one.star:
                self._count_star(label, one)
        for place, unit in enumerate(outline.units):
            if unit.has_effects:
                self._add((label, place))
            if "__getattr__" in unit.binds:
                line = getattr(unit.node, "lineno", 0)
                self._count_whole(label, f"__getattr__ of the module, line {line}")

    def _count_star(self, label: str, one: Importing) -> None:
        """Count both modules of a star import as a whole, and the submodules that it may import."""
        self._count_whole(label, f"star import, line {one.line}")
        self._escape(label)
        if is_public(one.star):
            self.shipped.add(one.star)
        for source, outline in self.program.find(one.star).items():
            self._count_whole(source, f"star import in {label}")
            self._escape(source)
            below = [f"{one.star}.{name}" for name in sorted(outline.exports)]
            for module in filter(self.program.find, below):
                self.import_modules([module])
                for found in self.program.find(module):
                    self._count_whole(found, f"star import in {label}")
                    self._escape(found)

    def _note_missing(self, one: Importing, outline: Outline) -> None:
        """Record imported modules that a package of the project does not have."""
        own = (
            f"{imported.module}.{imported.name}"
            for imported, name in zip(one.names, one.binds, strict=False)
            if imported.module == outline.name and outline.symbols[name] == [imported]
        )
        for name in (*one.required, *own):
            package = name.rpartition(".")[0]
            if package and self.resolver.exists(package) and not self.resolver.exists(name):
                self.broken.add(name)

    def _check(self, one: Importing) -> None:
        for imported in one.names:
            if self.program.find(imported.module):
                found = list(self.resolver.imported(imported, ()))
                if any(isinstance(part, Whole) and part.reason.startswith("no ") for part in found):
                    self.broken.add(str(imported.name))

    def _count_whole(self, label: str, reason: str) -> None:
        if label in self.whole:
            return
        self.whole[label] = reason
        for place in range(len(self.outline(label).units)):
            self._add((label, place))

    def _escape(self, label: str) -> None:
        """Reach everything that a module's names are bound to, since code uses the module as a value."""
        if label in self.escaped:
            return
        self.escaped.add(label)
        self.ordered.add(label)
        outline = self.outline(label)
        for bound in outline.symbols.values():
            for one in bound:
                if isinstance(one, Imported):
                    for part in self.resolver.imported(one, ()):
                        self._reach(part, label, 0)

    # --- definitions --------------------------------------------------------------------------

    def _add(self, key: Key) -> None:
        if key not in self.units:
            self.units[key] = None
            self._pending.append(key)

    def _reach(self, part: Part, label: str, line: int) -> None:
        match part:
            case Named(dotted=dotted):
                if dotted.startswith("shardline."):
                    self.shipped.add(dotted)
                for note in notes_of_name(dotted, line) if label else ():
                    self._heed(note, label)
            case Defined():
                self.import_modules([part.label.partition(" (")[0]])
                self._add((part.label, part.place))
            case Whole():
                where = f"{part.reason} in {label}, line {line}" if line else part.reason
                if label and not line:
                    where = f"a name of {label}: {self.whole[label]}"
                self.import_modules([part.label.partition(" (")[0]])
                self._count_whole(part.label, where)
                self._escape(part.label)

    def _heed(self, note: Note, label: str) -> None:
        if note.effect in ("module", "globals"):
            self._count_whole(label, f"{note.text}, line {note.line}")
        if note.effect == "globals":
            self._escape(label)
        elif note.effect != "module":
            self.flags.setdefault(note.effect, f"{note.text} in {label}, line {note.line}")

    def _drain(self) -> None:
        while self._pending or self._waiting:
            while self._waiting:
                label = self._waiting.pop(0)
                self._execute(label, self.run[label])
            if not self._pending:
                break
            key = self._pending.pop()
            for token in self.written(key).tokens:
                match token:
                    case Ref(use=use) if use != "Import":
                        for part in self.resolve(key[0], token):
                            self._reach(part, key[0], token.line)
                    case ImportRun():
                        self._run(token, key[0])
                    case Note():
                        self._heed(token, key[0])

    def _run(self, token: ImportRun, label: str) -> None:
        self.import_modules(token.modules)
        if token.escapes:
            for name in token.modules:
                for found in self.program.find(name):
                    self._reach(Whole(found, "imported by name"), label, token.line)

    def _close(self) -> None:
        """Reach everything that counts because other things are reached, until nothing is added."""
        before = None
        while before != (len(self.units), len(self.run), len(self.whole), len(self.flags)):
            before = (len(self.units), len(self.run), len(self.whole), len(self.flags))
            self._drain()
            if reason := self.flags.get("program"):
                for label in list(self.run):
                    self._count_whole(label, reason)
                for label in list(self.run):
                    self._escape(label)
            for label in list(self.escaped):
                inside = [one for one in self.run if one.startswith(f"{label}.")]
                for one in inside:  # submodules are attributes of their package
                    self._count_whole(one, f"part of {label}, {self.whole[label]}")
                    self._escape(one)
            for key in self._classes():
                self._add(key)

    def _classes(self) -> Iterator[Key]:
        """Yield classes that count although no code names them: their bases, or all code, may find them."""
        for label, outline in list(self.run.items()):
            for place, unit in enumerate(outline.units):
                if (label, place) in self.units or not isinstance(unit.node, ast.ClassDef):
                    continue
                bases = list(self.hooks.bases(label, outline, unit.node))
                below = any(
                    (part.label, part.place) in self.units
                    for part in bases
                    if isinstance(part, Defined)
                )
                if below or "classes" in self.flags or self.hooks.tells(label, place, outline):
                    yield (label, place)

    @property
    def packages(self) -> frozenset[str]:
        """Top-level names of imported installed packages."""
        own = {label.partition(".")[0].partition(" (")[0] for label in self.run} | {*OURS}
        tops = {name.partition(".")[0] for name in self.third_party}
        return frozenset(filter(str.isidentifier, tops - own - sys.stdlib_module_names))

    @property
    def loaded(self) -> list[str]:
        """Imported modules of other packages whose import may change something."""
        tops = self.packages - INERT_PACKAGES
        return sorted(name for name in self.third_party if name.partition(".")[0] in tops)


def needed_packages(code: CodeIndex, entry: str = "__main__") -> list[str]:
    """Return the top-level names that a program's own modules import unconditionally.

    Imports in a function, or below `try` or `if`, may never run, so they are left out.

    Args:
        code: index of the program's modules.
        entry: module that the program starts with.
    """
    needed: set[str] = set()
    pending, seen = [entry], {entry}
    while pending:
        module = pending.pop()
        path = code.find(module)
        assert path is not None
        outline = code.outline(path, module, is_main=module == "__main__")
        for name in (name for one in outline.importing for name in one.modules):
            top = name.partition(".")[0]
            if code.find(top) is None:
                needed.add(top)
            elif code.find(name) and name not in seen:
                seen.add(name)
                pending.append(name)
    return sorted(needed - sys.stdlib_module_names - set(OURS))
