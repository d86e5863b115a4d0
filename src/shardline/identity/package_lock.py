"""Package locks of pip and pin files of conda, and the locked packages of a stage's environment.

A stage's environment contains the Python version and the locked packages that its code imports, with
their dependencies. So a newer linter or chart library retrains nothing, and a newer torch retrains
everything. Lines are joined and stripped by pip's rules; `packaging` parses the requirements that are
more than a name and a version. Each job reads the lock, so this module imports neither `packaging` nor
`importlib.metadata` before it needs them (0.02 s each).
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from shardline.core.errors import ConfigError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

_COMMENT = re.compile(r"(^|\s+)#.*$")  # by pip's rule: the fragment of a URL is not a comment
_OPTIONS = re.compile(r"\s+(?=--)")
_HASH = re.compile(r"--hash[= ](?P<name>sha(256|384|512)):(?P<digest>[0-9a-f]+)")
# a name and a version for which `packaging` returns the same texts
PLAIN = re.compile(
    r"(?P<name>[A-Za-z0-9]+([._-][A-Za-z0-9]+)*)==(?P<version>\d+(\.\d+)*((a|b|rc|\.post)\d+)?)",
    re.ASCII,
)
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_WRITE = "write the lock with pip-compile or `uv pip compile`"
# Options about where packages come from, which do not change the pinned packages.
_WHERE = {
    "-f", "-i", "--extra-index-url", "--find-links", "--index-url", "--no-binary", "--no-index",
    "--only-binary", "--pre", "--prefer-binary", "--require-hashes", "--trusted-host", "--use-feature",
}  # fmt: skip
_REFUSED = {
    **dict.fromkeys(
        ("-e", "--editable"),
        "an editable package, whose content a lock cannot pin; leave it out (`uv export --no-emit-project`), and "
        "name your own code in the config, which adds it to the identity",
    ),
    **dict.fromkeys(
        ("-r", "-c", "--requirement", "--constraint"),
        "another file, expected all packages in this file; " + _WRITE,
    ),
}
_TABLES = re.compile(r"^\[\[packages?\]\]", re.MULTILINE)
_VIA = re.compile(r"^\s+#\s*(via\b)?|#\s*via\b")
_NAME = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)")
# Packages whose import name is not just another spelling. Others are found among the installed
# packages, which takes 0.14 s.
_DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python",
    "lightning_fabric": "pytorch-lightning",
    "sklearn": "scikit-learn",
    "vl_convert": "vl-convert-python",
    "yaml": "pyyaml",
}
_TOKEN = re.compile(r"(?<=[^/])/t/[^/\s]+(?=/)")  # in URLs of private channels
PLATFORM: Final = "linux-64"
# a line for conda 24.9 or newer; older versions do not support SHA-256
_LINE = re.compile(
    r"(?P<url>\S+/(?P<subdir>[^/#]+)/(?P<file>(?P<name>[^/#]+)-(?P<version>[^-/#]+)-(?P<build>[^-/#]+)"
    r"\.(conda|tar\.bz2)))#sha256:(?P<sha256>[0-9a-f]{64})"
)


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Pinned packages and their dependencies.

    Attributes:
        versions: version or `@ URL` by normalised package name; `1 or 2` if markers choose.
        needs: direct dependencies of each package.
        pins: lines of each package, as `name==version; marker` or `name @ URL ; marker`.
    """

    versions: dict[str, str]
    needs: dict[str, frozenset[str]]
    pins: dict[str, tuple[str, ...]]

    def environment(self, imports: Iterable[str]) -> dict[str, object]:
        """Return the environment of code, from the top-level names that the code imports."""
        packages = {
            name: self.versions.get(name) or _unlocked_version(name)
            for name in sorted(self.reached(imports))
        }
        return {"python": f"{sys.version_info[0]}.{sys.version_info[1]}", "packages": packages}

    def reached(self, imports: Iterable[str], *, ends: Collection[str] = ()) -> set[str]:
        """Return the packages of top-level names that code imports, with their dependencies.

        Args:
            ends: packages whose dependencies are left out.
        """
        packages: set[str] = set()
        pending = [package for name in imports for package in self._packages(name)]
        while pending:
            name = pending.pop()
            if name not in packages:
                packages.add(name)
                pending.extend(() if name in ends else self.needs.get(name, ()))
        return packages

    def requirements(self, packages: Iterable[str]) -> list[str]:
        """Return the lines of the lock that pin some packages; packages outside the lock are skipped."""
        return [pin for name in packages for pin in self.pins.get(name, ())]

    def _packages(self, import_name: str) -> set[str]:
        name = normalize(_DISTRIBUTIONS.get(import_name, import_name))
        if name in self.versions:
            return {name}
        # several packages may share one import name, such as azure
        return {normalize(package) for package in _distributions().get(import_name, [import_name])}


def load_lock(
    path: Path, shown: str | None = None, *, setting: str = "lock", is_whole: bool = False
) -> Lock:
    """Read a lock of pip-compile or `uv pip compile`, with its `# via` notes.

    Args:
        path: path of the lock.
        shown: the path as the user wrote it, for messages.
        setting: key of the setting with the path, for messages.
        is_whole: whether every package counts, so that the lock needs no notes.

    Raises:
        ConfigError: the file cannot be read, pins nothing, has no notes, or has a line that pins
            no package.
    """
    shown = f"{setting}={path if shown is None else shown}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(
            f"{shown}: cannot be read ({found}); check the path, or write it with pip-compile"
        ) from None
    if _TABLES.search(text):  # pylock.toml of uv and pip does not contain the dependencies
        raise ConfigError(
            f"{shown}: a TOML lock, expected a requirements file with `# via` notes; write one with "
            "`uv export --format requirements.txt`, `uv pip compile` or pip-compile"
        )
    return _parse_lock(text, shown, is_whole)


@lru_cache(maxsize=4)  # a process that loads several projects parses their lock once
def _parse_lock(text: str, shown: str, is_whole: bool) -> Lock:
    versions: dict[str, str] = {}
    needs: dict[str, set[str]] = {}
    pins: dict[str, list[str]] = {}
    for line in _lines_of(text, shown):
        name, version = normalize(line.name), line.version
        pins.setdefault(name, []).append(line.text)
        versions[name] = f"{versions[name]} or {version}" if name in versions else version
        for other in filter(None, map(_NAME.match, line.needed_by)):
            needs.setdefault(normalize(other["name"]), set()).add(name)
    if not versions:
        raise ConfigError(f"{shown}: no line like `package==1.2.3`; write it with pip-compile")
    if not is_whole and not re.search(r"#\s*via\b", text):
        raise ConfigError(
            f"{shown}: no `# via` notes, so the dependencies of the packages are unknown; "
            "write it with pip-compile or `uv pip compile`"
        )
    return Lock(
        versions=versions,
        needs={key: frozenset(names) for key, names in needs.items()},
        pins={key: tuple(lines) for key, lines in pins.items()},
    )


def normalize(name: str) -> str:
    """Return a package name as PEP 503 normalises it."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True, kw_only=True)
class LockLine:
    """Package that a lock pins.

    Attributes:
        name: name of the package as written.
        version: the pinned version, see `pinned`.
        text: the requirement as written in the lock; a URL contains its hashes, but no user, password and query.
        needed_by: names in the notes (`# via`) below the line.
    """

    name: str
    version: str
    text: str
    needed_by: list[str]


def _lines_of(text: str, where: str) -> Iterator[LockLine]:
    """Yield the pinned packages of a lock, in order.

    Args:
        text: content of the lock.
        where: start of the messages.

    Raises:
        ConfigError: a line pins nothing; the message names its number and a remedy.
    """
    current: LockLine | None = None
    begun, parts = 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begun = begun or number
        content = (_COMMENT.sub("", line) if "#" in line else line).strip()
        parts.append(content.removesuffix("\\").strip())
        if not content.endswith("\\"):
            entry = " ".join(filter(None, parts))
            if entry and (found := _parse(entry, f"{where}, line {begun}: ")):
                if current:
                    yield current
                current = found
            begun, parts = 0, []
        if current and "#" in line and (note := _VIA.search(line)):
            current.needed_by.extend(line[note.end() :].split(","))
    if current:
        yield current


def _parse(entry: str, where: str) -> LockLine | None:
    """Return the package that an entry pins; None if the entry is about where packages come from."""
    option = re.split(r"[\s=]", entry, maxsplit=1)[0]
    if option in _WHERE:
        return None
    shown = without_user(entry)
    if option in _REFUSED:
        raise ConfigError(f"{where}{shown} asks for {_REFUSED[option]}")
    text, *options = _OPTIONS.split(entry)
    plain = PLAIN.fullmatch(text)
    if plain and all(_HASH.fullmatch(option.strip()) for option in options):
        return LockLine(name=plain["name"], version=plain["version"], text=text, needed_by=[])
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
        hashes = [_hash(option) for option in options]
        given = requirement.url or ""
        if given:
            requirement.url = _pinned_url(given, hashes)
            text = text.replace(given, requirement.url)
        else:
            _check_version(requirement)
    except InvalidRequirement:
        problem = f"is not a requirement, expected `name==version` or `name @ URL`; {_WRITE}"
        raise ConfigError(f"{where}{shown} {problem}") from None
    except ValueError as error:
        raise ConfigError(f"{where}{shown} {error}") from None
    return LockLine(name=requirement.name, version=pinned(requirement), text=text, needed_by=[])


def without_user(text: str) -> str:
    """Return a text with users, passwords and queries of URLs removed, since they may be secret."""
    return re.sub(r"(?<=://)[^/\s]*@(?=[^/\s]*)|\?[^\s#]*", "", text)


def _hash(option: str) -> str:
    match = _HASH.fullmatch(option.strip())
    if not match:
        raise ValueError(f"has the option {option}, expected only --hash=sha256:...; {_WRITE}")
    return f"{match['name']}={match['digest']}"


def _check_version(requirement: "Requirement") -> None:
    operators = [one.operator for one in requirement.specifier]
    if operators not in (["=="], ["==="]) or "*" in str(requirement.specifier):
        raise ValueError(f"pins no version, expected `name==1.2.3`; {_WRITE}")


def _pinned_url(url: str, hashes: list[str]) -> str:
    """Return a URL that pins its content, in a canonical form.

    Raises:
        ValueError: the URL pins no content.
    """
    parts = urlsplit(url)
    known = [f"{key}={value}" for key, value in parse_qsl(parts.fragment) if key != "egg"]
    fragment = sorted({*known, *hashes})
    is_hashed = any(item.startswith("sha") for item in fragment)
    if parts.scheme.startswith("git+"):
        if not _COMMIT.fullmatch(parts.path.rpartition("@")[2]):
            raise ValueError(
                "names no commit, expected its 40 hex digits after an @, since branches and tags move; add them"
            )
    elif parts.scheme in ("http", "https", "file"):
        is_named = parts.scheme != "file" and parts.path.endswith(".whl") and not parts.query
        if not (is_named or is_hashed):
            raise ValueError(
                "has no digest, expected one, since the file at this URL may change; add #sha256=... to the URL"
            )
    else:
        raise ValueError(
            "is of an unknown kind, expected git+https://...@COMMIT, or the URL of a wheel or source archive; use one"
        )
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "&".join(fragment)))


def pinned(requirement: "Requirement") -> str:
    """Return the version of a requirement, as identities contain it: a version, or `@ URL`.

    For a file on this machine, this is `@`, its name and digest.
    """
    if requirement.url is None:
        return str(requirement.specifier).removeprefix("==")
    if requirement.url.startswith("file:"):
        return f"@ {requirement.url.rpartition('/')[2]}"
    return f"@ {requirement.url}"


@cache
def _distributions() -> dict[str, list[str]]:
    from importlib.metadata import packages_distributions

    return dict(packages_distributions())


@cache
def _unlocked_version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name) + " (not in the lock)"
    except PackageNotFoundError:
        return "not installed"


@dataclass(frozen=True, kw_only=True)
class Pin:
    """Pinned package of a conda environment.

    Attributes:
        url: URL of the package's file.
        sha256: digest of the file.
        file: name of the file, which contains name, version and build.
        subdir: platform of the build, or `noarch`.
    """

    url: str
    sha256: str
    file: str
    name: str
    version: str
    build: str
    subdir: str

    @property
    def public_url(self) -> str:
        """The URL without a login or token."""
        return without_token(without_user(self.url))

    @property
    def line(self) -> str:
        """The line of a pin file."""
        return f"{self.url}#sha256:{self.sha256}"


def without_token(url: str) -> str:
    """Return a channel's URL without the token of `/t/TOKEN/`."""
    return _TOKEN.sub("", url)


def parse_pin(line: str) -> Pin:
    """Return the pinned package of a line of a pin file.

    Raises:
        ValueError: the line is not the URL of a package with a SHA-256.
    """
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(line)
    return Pin(**match.groupdict())


def content_of(pins: Sequence[Pin]) -> dict[str, str | list[list[str]]]:
    """Return the content of a conda environment for identities: files and digests of its packages, and the platform."""
    return {"packages": sorted([pin.file, pin.sha256] for pin in pins), "platform": PLATFORM}


def read_pins(path: Path, *, remedy: str = "write it with `make lock`") -> list[Pin]:
    """Return the pinned packages of a pin file.

    Args:
        path: the pin file.
        remedy: end of the messages.

    Raises:
        ConfigError: the file cannot be read, or a line has no digest; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}); {remedy}") from None
    pins = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith(("#", "@")):
            continue
        try:
            pins.append(parse_pin(line))
        except ValueError:
            raise ConfigError(
                f"{path} line {number}: {without_token(without_user(line))} is not the URL of a conda package "
                f"with #sha256: and its digest; {remedy}"
            ) from None
    return pins
