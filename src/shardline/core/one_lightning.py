"""One copy of Lightning in a process, under the names of both of its packages.

Lightning is published as `pytorch-lightning` (`pytorch_lightning`, `lightning_fabric`) and as `lightning`
(`lightning.pytorch`, `lightning.fabric`). With both copies in a process, a LightningModule of one is none for the
other. So an import hook gives the modules of the copy that is loaded under the other names too.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final, Literal

from shardline.core.errors import ConfigError

Package = Literal["pytorch_lightning", "lightning"]  # by import name
DISTRIBUTIONS: Final[dict[Package, str]] = {
    "pytorch_lightning": "pytorch-lightning",
    "lightning": "lightning",
}
# the modules of each package that are the same code, in the same order
_PARTS: dict[Package, tuple[str, str]] = {
    "pytorch_lightning": ("pytorch_lightning", "lightning_fabric"),
    "lightning": ("lightning.pytorch", "lightning.fabric"),
}
_OLDEST = "2.6"
_WITHDRAWN = {"2.6.2", "2.6.3"}  # these uploads of `lightning` were malicious
_APART = ("__version__", "__about__")  # `lightning` has them only in its top folder


def keep(packages: Sequence[str] = ()) -> str:
    """Load one copy of Lightning in this process, and give it the names of both packages.

    Call this before anything imports Lightning. A copy that is already loaded stays.

    Args:
        packages: the packages that the code imports, by import name. The first is loaded; without any, the one that
            is imported first.

    Returns:
        A line for the log if the code imports both packages; else an empty string.

    Raises:
        ConfigError: Shardline rejects the installed version of the package.
    """
    known = [package for package in DISTRIBUTIONS if package in packages[:1]]
    for package in known:
        # code that imports a missing package fails with an error that names the import
        if loaded() is None and (found := _installed(package)):
            check_version(package, found, "installed")
            _FINDER.kept = package
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    if len(packages) < 2:
        return ""
    return (
        f"the code of the run imports {packages[0]} and {packages[1]}: one copy of Lightning is loaded, of the package "
        f"{DISTRIBUTIONS[loaded() or known[0]]}"
    )


def loaded() -> Package | None:
    """Return the package whose code is loaded or will be, or None."""
    for package, parts in _PARTS.items():
        if _FINDER.kept is None and any(part in sys.modules for part in parts):
            _FINDER.kept = package
    return _FINDER.kept


def check_version(package: Package, found: str, where: str) -> None:
    """Reject versions of Lightning that Shardline does not run with.

    Args:
        found: the version.
        where: what says so, for the message: `installed`, or `pinned by lock=...`.

    Raises:
        ConfigError: the version is too old, or was withdrawn; the message names it.
    """
    from packaging.version import InvalidVersion, Version

    name = DISTRIBUTIONS[package]
    if found in _WITHDRAWN:
        raise ConfigError(
            f"{name} {found} is {where}, but this version was withdrawn, since it contained malicious code; use "
            "another version, and replace the credentials on machines that installed it"
        )
    with suppress(InvalidVersion):  # several versions by markers, or a URL
        if Version(found) < Version(_OLDEST):
            raise ConfigError(
                f"{name} {found} is {where}, expected {_OLDEST} or newer; use a newer version"
            )


def _installed(package: Package) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTIONS[package])
    except PackageNotFoundError:
        return None


class _OneCopy(MetaPathFinder, Loader):
    """Finder and loader that gives the modules of the kept package under the other package's names."""

    kept: Package | None = None
    _specs: dict[str, ModuleSpec | None]

    def __init__(self) -> None:
        self._specs = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec for a name of the other package; None for every other name."""
        name = _name_in_kept(fullname)
        if name is None or (name not in sys.modules and importlib.util.find_spec(name) is None):
            return None
        return ModuleSpec(fullname, self, loader_state=name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module of the kept package."""
        module = importlib.import_module(spec.loader_state)
        self._specs[spec.name] = getattr(module, "__spec__", None)
        return module

    def exec_module(self, module: Any) -> None:
        """Give the module its own spec back, which importlib has replaced."""
        name = module.__spec__.name
        module.__spec__ = self._specs.pop(name)
        if any(name in parts for parts in _PARTS.values()):
            _add_versions(name)


def _name_in_kept(name: str) -> str | None:
    """Return the name in the kept package of a module of the other package; None for every other module."""
    if not name.startswith(("lightning", "pytorch_lightning")) or (kept := loaded()) is None:
        return None
    (other,) = DISTRIBUTIONS.keys() - {kept}
    for part, own in zip(_PARTS[other], _PARTS[kept], strict=True):
        if name == part or name.startswith(f"{part}."):
            return own + name.removeprefix(part)
    return None


def _add_versions(name: str) -> None:
    """Add the modules of the version; importlib would replace the attribute `__version__` by the module."""
    kept = _name_in_kept(name)
    assert kept
    top = kept.partition(".")[0]
    for child in _APART:
        sys.modules[f"{name}.{child}"] = importlib.import_module(f"{top}.{child}")


_FINDER: Final = _OneCopy()
