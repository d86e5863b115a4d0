"""Files that users write: the config and notes on runs, without credentials."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardline.config.settings import Plain
from shardline.core.credentials import credential_in
from shardline.core.errors import ConfigError
from shardline.core.redaction import assigned, is_secret, mask
from shardline.identity.package_lock import without_token

if TYPE_CHECKING:
    import yaml  # 0.015 s that jobs do not need, since they read no config

# Nobody's model takes one of these for anything else; a passphrase is long and of ordinary words.
_PASSWORD = re.compile(r"(?:.*[_-])?(?:passw(?:or)?d|passphrase|pwd)s?", re.IGNORECASE)
_LONG = 16
_REGISTRY = "leave it out and log in with the tool (`podman login REGISTRY`), which keeps it"
# Where nothing of the user's reads a variable.
_REMEDIES = {
    "environments": _REGISTRY,
    "image": _REGISTRY,
    "runtime.hosts": "leave it out and name the user and a key of this host in ~/.ssh/config",
    "conda.channels": "leave it out and let RATTLER_AUTH_FILE name a file that holds it",
}


def allowed_of(config: Plain) -> Sequence[str]:
    """Return `runtime.not_secret` of a config before its validation."""
    runtime = config.get("runtime")
    listed = runtime.get("not_secret", ()) if isinstance(runtime, Mapping) else ()
    return [str(key) for key in listed] if isinstance(listed, list | tuple) else []


def refuse_credentials(settings: Plain, where: str, allowed: Sequence[str]) -> None:
    """Reject a setting whose value looks like a credential.

    Args:
        where: File and row, the start of messages.
        allowed: Dotted keys with values, or keys below, that are no credentials; the prefix
            `defaults.` is optional.

    Raises:
        ConfigError: A value looks like a credential; the message does not contain the value.
    """
    for key, text in _texts(settings, ""):
        if (kind := _credential(key, text)) and not _is_allowed(key, allowed):
            raise ConfigError(
                f"{where}: {key} contains {kind}, expected no credential, since results record all settings; "
                f"{_remedy(key, kind)}, or, if it is no credential, add {key} to runtime.not_secret"
            )


def _remedy(key: str, kind: str) -> str:
    for begin, remedy in _REMEDIES.items():
        if key == begin or key.startswith(f"{begin}."):
            return remedy
    place = "write ${NAME} in its place (for a source's URL), " if "URL" in kind else ""
    return f"{place}put it into an environment variable that runtime.pass_env names and have the code read it there"


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield dotted key and text of each value; items of a list have the key of the list."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield key or name, name  # a secret may be misplaced as a key
            yield from _texts(item, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str):
        yield key, value


@lru_cache(4096)
def _credential(key: str, text: str) -> str | None:
    if key == "conda.channels" and without_token(text) != text:
        return "a URL with a token"
    # all values below a name such as `credentials` are secret
    named = any(map(is_secret, key.split(".")))
    if kind := credential_in(text, has_secret_name=named):
        return kind
    is_password = any(map(_PASSWORD.fullmatch, key.split(".")))
    if is_password and len(text) >= _LONG and text[0] not in "$/~":
        return "a long password"
    for value in assigned(text):  # as in the command line of a script
        if kind := credential_in(value, has_secret_name=True):
            return kind
    return None


def _is_allowed(key: str, allowed: Sequence[str]) -> bool:
    names = (key, key.removeprefix("defaults."))
    return any(name == one or name.startswith(f"{one}.") for name in names for one in allowed)


def read_config(path: Path) -> dict[str, Any]:
    """Read a YAML config.

    Raises:
        ConfigError: The file cannot be read, is not valid YAML, has no keys or a key twice.
    """
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); run from the project's folder"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML ({_reason(error)}); fix it") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: contains no keys; see config/README.md for the required keys")
    refuse_duplicates(path)
    return document


def _reason(error: "yaml.YAMLError") -> str:
    """Return problem and position without the lines, which may contain part of a secret."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    reasons = filter(None, (getattr(error, "context", ""), getattr(error, "problem", "")))
    return f"line {mark.line + 1}, column {mark.column + 1}: {', '.join(reasons)}"


def refuse_duplicates(path: Path) -> None:
    """Reject a YAML file with a duplicate key, since YAML silently uses the last value.

    A missing file is ignored, since Snakemake may have read another file.

    Raises:
        ConfigError: A key is set twice; the message names file, line and key.
    """
    import yaml

    try:
        node = yaml.compose(
            path.read_text(encoding="utf-8-sig"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return
    for key in _duplicates(node, set()):
        line = key.start_mark.line + 1
        raise ConfigError(f"{path}, line {line}: {key.value} is set twice in one table; drop one")


def _duplicates(node: "yaml.Node | None", visited: set[int]) -> "Iterator[yaml.Node]":
    import yaml

    if node is None or id(node) in visited or isinstance(node, yaml.ScalarNode):
        return
    visited.add(id(node))  # an alias may lead back to its own node
    seen: set[str] = set()
    for item in node.value:
        if isinstance(node, yaml.MappingNode):
            key, item = item
            if key.value in seen:
                yield key
            seen.add(str(key.value))
        yield from _duplicates(item, visited)


def plain(value: Any, where: str, key: str = "") -> Any:
    """Return a deep copy of a value in dictionaries, lists, text, numbers, booleans and None.

    Args:
        where: File, the start of messages.
        key: Dotted key of the value.

    Raises:
        ConfigError: A key is not text, a number is not finite, or a value has another type, such
            as a date of YAML.
    """
    try:
        return _plain(value, where, key)
    except RecursionError:
        raise ConfigError(
            f"{where}: {key or 'the config'} contains itself; drop the YAML alias"
        ) from None


def _plain(value: Any, where: str, key: str) -> Any:
    if isinstance(value, Mapping):
        return {
            _text(k, where, key): _plain(v, where, f"{key}.{k}".lstrip("."))
            for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_plain(item, where, key) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {key}={value} is not a finite number; give one")
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ConfigError(
            f"{where}: {key}={value} is of type {type(value).__name__}, not text or a number; put it in quotes"
        )
    return value


def _text(key: Any, where: str, parent: str) -> str:
    if type(key) is int and re.fullmatch(r"sweeps\.[^.]+\.parallel", parent):
        return str(key)  # number of a trial
    if not isinstance(key, str):
        place = parent or "the config"
        raise ConfigError(
            f"{where}: key {key} of {place} is of type {type(key).__name__}, not text; put it in quotes"
        )
    return key


FOLDER = Path("config/notes")
_FENCE = "---"


@dataclass(frozen=True, kw_only=True)
class RunNote:
    """A note on a run.

    Attributes:
        name: Name of the run.
        text: Markdown text.
        tags: Tags from the YAML between two lines `---` at the start of the file.
    """

    name: str
    text: str
    tags: tuple[str, ...] = ()


def read_notes(workdir: Path, names: Iterable[str]) -> dict[str, RunNote]:
    """Return the notes on runs by name of the run.

    Raises:
        ConfigError: A note is not UTF-8, or its tags are not a list of texts.
    """
    folder = workdir / FOLDER
    there = {path.stem for path in folder.glob("*.md")} if folder.is_dir() else set()
    return {name: _read(folder / f"{name}.md", name) for name in names if name in there}


def _read(path: Path, name: str) -> RunNote:
    shown = FOLDER / path.name
    try:
        text = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError) as error:
        found = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError(f"{shown}: cannot be read ({found}); save it as UTF-8") from None
    head: Plain = {}
    if text.startswith(f"{_FENCE}\n") and f"\n{_FENCE}\n" in f"{text}\n":
        front, _, text = f"{text}\n".removeprefix(f"{_FENCE}\n").partition(f"{_FENCE}\n")
        head = _front_matter(front, shown)
    tags = head.get("tags") or []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise ConfigError(f"{shown}: tags={tags} is not a list of texts; write [baseline, paper]")
    return RunNote(name=name, text=mask(text.strip()), tags=tuple(map(mask, tags)))


def _front_matter(text: str, shown: Path) -> Plain:
    import yaml

    try:
        head = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{shown}: the lines between --- are not valid YAML ({' '.join(str(error).split())}); correct them"
        ) from None
    if not isinstance(head, Mapping) or set(head) - {"tags"}:
        raise ConfigError(f"{shown}: between the lines --- only `tags` is known; drop the rest")
    return head
