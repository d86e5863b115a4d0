"""Resolution of names: to definitions, to classes with hooks, and to methods of classes."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shardline.identity.code_index import CodeIndex
from shardline.identity.module_imports import parse_quietly
from shardline.identity.names import FUNCTIONS, Imported, Ref, chain_of, imported_names
from shardline.identity.outline import Outline
from shardline.identity.purity import is_built_in, is_inert
from shardline.identity.versions import is_public

_OF_MODULE = {"__name__", "__package__", "__spec__", "__loader__", "__path__"}
_HOOK = "__init_subclass__"
# packages whose classes contain no user code
_PLAIN = {"abc", "builtins", "lightning", "pytorch_lightning", "torch", "typing"}


@dataclass(frozen=True)
class Named:
    """Name outside the project: `numpy.array`, `builtins.len`.

    Attributes:
        dotted: full name; it begins with `?` if nothing binds the name.
    """

    dotted: str


@dataclass(frozen=True)
class Defined:
    """Unit of a project module, with attributes read from it.

    Attributes:
        label: label of the module.
        place: index of the unit in the module.
        chain: name and attributes, such as `("Net", "Inner", "size")` for `Net.Inner.size`.
    """

    label: str
    place: int
    chain: tuple[str, ...]


@dataclass(frozen=True)
class Whole:
    """Module that counts as a whole: it is used as a value, or lacks a name that code reads.

    Attributes:
        label: label of the module.
        reason: reason for users.
        chain: the missing name and the attributes read from it.
    """

    label: str
    reason: str
    chain: tuple[str, ...] = ()


Part = Named | Defined | Whole
Seen = frozenset[tuple[str, str, tuple[str, ...]]]


@dataclass
class Resolver:
    """Follows names through imports and re-exports to their definitions.

    Attributes:
        find: function that returns the project modules of a dotted name, by label.
        is_folder: function that returns whether a dotted name is a namespace package of the project.
    """

    find: Callable[[str], dict[str, Outline]]
    is_folder: Callable[[str], bool]
    _known: dict[tuple[str, Ref], tuple[Part, ...]] = field(default_factory=dict)

    def resolve(self, label: str, outline: Outline, ref: Ref) -> tuple[Part, ...]:
        """Return all parts that a reference may mean, in a fixed order."""
        key = (label, Ref(ref.chain, 0, "", ref.imported))
        if key not in self._known:
            name, rest = ref.chain[0], ref.chain[1:]
            parts = (
                (part for one in ref.imported for part in self.imported(one, rest))
                if ref.imported
                else self._symbol(label, outline, name, rest, frozenset())
            )
            self._known[key] = tuple(dict.fromkeys(parts))
        return self._known[key]

    def imported(
        self, one: Imported, rest: tuple[str, ...], seen: Seen = frozenset()
    ) -> Iterator[Part]:
        """Yield the parts that an imported name, with attributes, may mean."""
        if one.name is None:
            yield from self._module(one.module, rest, seen)
        else:
            yield from self._member(one.module, one.name, rest, seen)

    def exists(self, module: str) -> bool:
        """Return whether a dotted name is a module or package of the project."""
        return bool(self.find(module)) or self.is_folder(module)

    def _symbol(
        self, label: str, outline: Outline, name: str, rest: tuple[str, ...], seen: Seen
    ) -> Iterator[Part]:
        parts = list(self._bound(label, outline, name, rest, seen))
        below = f"{outline.name}.{name}"
        if parts:
            yield from parts
        elif name in _OF_MODULE:
            yield Named(".".join([f"{name} of {outline.name}", *rest]))
        elif self.exists(below):  # an imported submodule is an attribute of its package
            yield from self._module(below, rest, seen)
        else:
            # other code may set an unbound name in this module, but not in another one
            top = "builtins" if is_built_in(name) else f"? of {outline.name}"
            yield Named(".".join([top, name, *rest]))

    def _bound(
        self, label: str, outline: Outline, name: str, rest: tuple[str, ...], seen: Seen
    ) -> Iterator[Part]:
        """Yield the parts that a module binds a name to, also by `import *`."""
        if (label, name, rest) in seen:
            return
        seen |= {(label, name, rest)}
        if outline.binary:
            yield Defined(label, 0, (name, *rest))
        for bound in outline.symbols.get(name, ()):
            if isinstance(bound, Imported):
                yield from self.imported(bound, rest, seen)
            else:
                yield Defined(label, bound, (name, *rest))
        if name.startswith("__"):
            return
        for star in (one.star for one in outline.importing if one.star):
            for other, source in self.find(star).items():
                found = list(self._bound(other, source, name, rest, seen))
                yield from ([Named(f"? {name} by star"), *found] if found else ())

    def _module(self, module: str, rest: tuple[str, ...], seen: Seen) -> Iterator[Part]:
        if rest:
            yield from self._member(module, rest[0], rest[1:], seen)
        elif is_public(module) or not self.exists(module):
            yield Named(module)
        else:
            yield from (Whole(label, "used as a value") for label in self.find(module))

    def _member(self, module: str, name: str, rest: tuple[str, ...], seen: Seen) -> Iterator[Part]:
        below = f"{module}.{name}"
        if is_public(below) or (is_public(module) and not self.exists(below)):
            yield Named(".".join([below, *rest]))
            return
        if not self.exists(module):
            yield Named(".".join([below, *rest]))
            return
        places = self.find(module)
        parts: list[Part] = []
        for label, outline in places.items():
            parts += self._bound(label, outline, name, rest, seen)
        if self.exists(below) and Imported(module, name) not in _imports(places, name):
            parts += self._module(below, rest, seen)
        if not parts and name in ("__name__", "__file__", "__doc__", "__package__"):
            parts.append(Named(f"{name} of {module}"))
        lacking = any((label, name, rest) in seen for label in places)
        if not parts and not lacking:
            reason, chain = f"no definition of {name} seen", (name, *rest)
            parts += (Whole(label, reason, chain) for label in places)
        yield from parts


def _imports(places: dict[str, Outline], name: str) -> set[Imported]:
    return {
        bound
        for outline in places.values()
        for bound in outline.symbols.get(name, ())
        if isinstance(bound, Imported)
    }


@dataclass
class Hooks:
    """Finds classes whose definition has an effect elsewhere, through their bases.

    Attributes:
        resolver: resolver of names.
    """

    resolver: Resolver
    _telling: dict[tuple[str, int], bool] = field(default_factory=dict)
    _bases: dict[tuple[str, ast.ClassDef], tuple[Part, ...]] = field(default_factory=dict)

    def bases(self, label: str, outline: Outline, node: ast.ClassDef) -> tuple[Part, ...]:
        """Return the bases of a class, and of classes in its body."""
        if (label, node) not in self._bases:
            refs = (_reference(base) for one in _with_inner(node) for base in one.bases)
            self._bases[label, node] = tuple(
                part for ref in refs if ref for part in self.resolver.resolve(label, outline, ref)
            )
        return self._bases[label, node]

    def tells(self, label: str, place: int, outline: Outline) -> bool:
        """Return whether the definition of a class may have an effect elsewhere."""
        unit = outline.units[place]
        if (label, place) not in self._telling:
            self._telling[label, place] = False  # until its bases are checked
            node = unit.node
            self._telling[label, place] = unit.has_effects or (
                isinstance(node, ast.ClassDef)
                and any(self._is_telling(part) for part in self.bases(label, outline, node))
            )
        return self._telling[label, place]

    def _is_telling(self, base: Part) -> bool:
        if isinstance(base, Named):
            return not is_inert(base.dotted)
        if not isinstance(base, Defined):
            return True
        outline = self.resolver.find(base.label.partition(" (")[0])[base.label]
        node = outline.units[base.place].node
        if not isinstance(node, ast.ClassDef) or len(base.chain) > 1:
            return True
        hooked = any(_HOOK in (getattr(one, "name", ""), *_names(one)) for one in node.body)
        return hooked or bool(node.keywords) or self.tells(base.label, base.place, outline)


def _with_inner(node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    yield node
    for one in node.body:
        if isinstance(one, ast.ClassDef):
            yield from _with_inner(one)


def _names(node: ast.stmt) -> Iterator[str]:
    if not isinstance(node, FUNCTIONS):
        yield from (one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def _reference(node: ast.expr) -> Ref | None:
    if isinstance(node, ast.Subscript):
        node = node.value
    base, chain = chain_of(node)
    return Ref((base.id, *chain)) if isinstance(base, ast.Name) else None


class _Source(NamedTuple):
    """Classes and imports of a module, by name."""

    classes: dict[str, ast.ClassDef]
    imports: dict[str, Imported]


def has_method(code: CodeIndex, path: str, method: str) -> bool | None:
    """Return whether a class or one of its base classes defines a method.

    Args:
        code: index of the project's modules.
        path: import path of the class, such as `mypkg.models:Net`.
        method: name of the method.

    Returns:
        None if no definition was found and the source of a base class is unknown, such as in an installed package.
    """
    module, _, name = path.partition(":")
    return _Search(code, method).in_module(module, name)


class _Search:
    def __init__(self, code: CodeIndex, method: str) -> None:
        self._code, self._method = code, method
        self._seen: set[tuple[str, str]] = set()
        self._sources: dict[str, _Source] = {}

    def in_module(self, module: str, name: str) -> bool | None:
        """Return whether the class of a name in a module has the method; None if unknown."""
        if (module, name) in self._seen:
            return False
        self._seen.add((module, name))
        file = self._code.find(module)
        if file is None or file.suffix != ".py":
            return False if module.partition(".")[0] in _PLAIN else None
        if module not in self._sources:
            self._sources[module] = _read(file, module)
        return self._named(module, self._sources[module], name)

    def _named(self, module: str, source: _Source, name: str) -> bool | None:
        if name in source.classes:
            return self._in_class(module, source, source.classes[name])
        if name in source.imports:
            found = source.imports[name]
            return self.in_module(found.module, found.name) if found.name else None
        return False if name == "object" else None

    def _in_class(self, module: str, source: _Source, node: ast.ClassDef) -> bool | None:
        if any(self._method in _bound(statement) for statement in node.body):
            return True
        found = [self._base(module, source, base) for base in node.bases]
        return True if True in found else None if None in found else False

    def _base(self, module: str, source: _Source, base: ast.expr) -> bool | None:
        if isinstance(base, ast.Name):
            return self.in_module(module, base.id)
        first, _, rest = ast.unparse(base).partition(".")
        if first not in source.imports or not rest.replace(".", "").isidentifier():
            return None
        inner, _, name = rest.rpartition(".")
        found = source.imports[first]
        return self.in_module(".".join(filter(None, (found.module, found.name, inner))), name)


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement in a class body binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return {statement.name}
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _read(file: Path, module: str) -> _Source:
    tree = parse_quietly(file.read_bytes())
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    classes: dict[str, ast.ClassDef] = {}
    imports: dict[str, Imported] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= imported_names(node, package)
    return _Source(classes, imports)
