"""What counts of a user's code: the definitions that an entry point can reach."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from shardline.core.canonical import short_digest
from shardline.identity.beside import Beside
from shardline.identity.merkle import Graph
from shardline.identity.program import Folders, Index, Program
from shardline.identity.reach import Key, Reach
from shardline.identity.resolution import Defined, Named, Part, Whole
from shardline.identity.run_order import RunOrder
from shardline.identity.tokens import Ref, Token
from shardline.identity.versions import is_public


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """The code that an entry point can reach.

    Attributes:
        digest: of the entry point and all that it reaches (12 hex digits). This alone is part
            of an identity; no path of a module counts in it.
        definitions: digest by `module:qualname`, `module:<module>` for statements with effects
            and `module:file path` for files that are read; they show what changed.
        third_party: top-level names of installed packages that this code imports.
        whole: why a module counts whole, by module.
        shipped: dotted names of Shardline's that this code refers to.
        files: of these modules, and those that they read beside themselves.
    """

    digest: str
    definitions: dict[str, str]
    third_party: frozenset[str]
    whole: dict[str, str]
    shipped: frozenset[str] = frozenset()
    files: frozenset[Path] = frozenset()


def reach(index: Index, roots: Folders, entry: str, whole: str = "") -> UserCode:
    """Find what an entry point can reach.

    Args:
        index: finds and parses modules.
        roots: folders that are searched, in import order.
        entry: `module:qualname`, or `__main__` for the script of the index.
        whole: why all of the entry's module counts, if it does.

    Raises:
        ConfigError: a module cannot be read or is not valid Python; the message
            names file and line.
    """
    module, _, qualname = entry.partition(":")
    if is_public(f"{module}.{qualname}".rstrip(".")):
        code = short_digest(["shipped", entry])
        return UserCode(digest=code, definitions={}, third_party=frozenset(), whole={})
    with _no_garbage_collection():
        return _reached(index, roots, (module, qualname), whole)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the collector: 200 syntax trees, all of them kept, took twice as long with it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _reached(index: Index, roots: Folders, entry: tuple[str, str], whole: str) -> UserCode:
    searched: list[Folders] = [roots]
    alone: Folders = ()
    options: frozenset[str] = frozenset()
    while True:
        found = Reach(Program(index, searched, alone, "main" in options), options)
        parts = _follow(found, *entry, whole)
        new = [folder for folder in _added(found, index) if (folder,) not in searched]
        searched += [(folder,) for folder in new]
        later = roots[1:] if alone or found.program.edits_sys_path(found.run) else ()
        if not new and later == alone and found.wanted == options:
            return _summary(found, entry[0], parts)
        alone = later
        options |= found.wanted


def _follow(found: Reach, module: str, qualname: str, whole: str) -> list[Part]:
    """Reach an entry point; return what it is."""
    found.import_modules([module])
    places = found.program.find(module)
    parts: list[Part] = []
    for label, outline in places.items():
        if qualname:
            parts += found.resolve(label, Ref(tuple(qualname.split("."))))
        elif whole or module != "__main__":
            parts.append(Whole(label, whole or "named without a definition"))
        missing = any(
            isinstance(p, Named) and p.dotted.startswith(("?", "builtins.")) for p in parts
        )
        if missing and qualname.partition(".")[0] not in outline.symbols:
            parts.append(Whole(label, f"no definition of {qualname} seen"))
    found.follow(parts)
    return parts


def _added(found: Reach, index: Index) -> dict[Path, None]:
    """Return the folders that the executed modules add to `sys.path`."""
    added: dict[Path, None] = {}
    for label, outline in found.run.items():
        added |= dict.fromkeys(index.folders_added_by(found.program.files[label], outline.name))
    return added


def _summary(found: Reach, module: str, parts: list[Part]) -> UserCode:
    files = Beside(found).files()
    texts = {key: tuple(beside.values()) for key, beside in files.items()}
    definitions = _definitions(found)
    for (label, _), beside in sorted(files.items()):
        definitions |= {f"{label}:file {path}": digest for path, digest in beside.items()}
    return UserCode(
        digest=Graph(found, RunOrder(found, module), texts).digest(parts),
        definitions=definitions,
        third_party=found.packages,
        whole=dict(sorted(found.whole.items())),
        shipped=frozenset(found.shipped),
        files=frozenset([*found.program.files.values(), *_paths(found, files)]),
    )


def _paths(found: Reach, files: Mapping[Key, Mapping[str, str]]) -> Iterator[Path]:
    for (label, _), beside in files.items():
        folder = found.program.files[label].parent.resolve()
        yield from ((folder / name).resolve() for name in beside)


def _definitions(found: Reach) -> dict[str, str]:
    texts: dict[str, list[str]] = {}
    for key in sorted(found.units):
        label, unit, written = key[0], found.unit(key), found.written(key)
        shown = [_shown(token, found, key) for token in written.tokens]
        name = f"{label}:{unit.label}"
        for method, spans in written.parts.items():
            for begin, end in spans:
                texts.setdefault(f"{name}.{method}", []).extend(shown[begin:end])
                shown[begin:end] = [""] * (end - begin)
        texts.setdefault(name, []).extend(filter(None, shown))
    return {name: short_digest(parts) for name, parts in sorted(texts.items())}


def _shown(token: Token, found: Reach, key: Key) -> str:
    """Write a token by names alone, so that a definition differs only where it was edited."""
    if isinstance(token, str):
        return token
    if not isinstance(token, Ref):
        return ""
    parts = found.resolve(key[0], token)
    return " ".join([token.use, *(_name(part) for part in parts)])


def _name(part: Part) -> str:
    match part:
        case Named(dotted=dotted):
            return dotted
        case Defined(chain=chain):
            return ".".join(chain)
        case Whole(chain=chain):
            return ".".join(["module", *chain])
