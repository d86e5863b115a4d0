"""Lines of a lock: each pins a package, or is refused by its number.

pip's own rules join and strip lines, `packaging` reads the requirements in them.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from packaging.requirements import InvalidRequirement, Requirement

from shardline.core.errors import ConfigError

_COMMENT = re.compile(r"(^|\s+)#.*$")  # as pip has it: the fragment of a URL is none
_OPTIONS = re.compile(r"\s+(?=--)")
_HASH = re.compile(r"--hash[= ](?P<name>sha(256|384|512)):(?P<digest>[0-9a-f]+)")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_WRITE = "write the lock with pip-compile or `uv pip compile`"
# Where packages come from does not determine which they are.
_WHERE = {
    "-f", "-i", "--extra-index-url", "--find-links", "--index-url", "--no-binary", "--no-index",
    "--only-binary", "--pre", "--prefer-binary", "--require-hashes", "--trusted-host", "--use-feature",
}  # fmt: skip
_REFUSED = {
    **dict.fromkeys(
        ("-e", "--editable"),
        "an editable package, whose content no lock pins; leave it out (`uv export --no-emit-project`), and name "
        "your own code in the config, which counts by its meaning",
    ),
    **dict.fromkeys(
        ("-r", "-c", "--requirement", "--constraint"),
        "another file, expected every package in this one; " + _WRITE,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """One package that a lock pins.

    Attributes:
        requirement: with its hashes in the URL, where it has one, and that without user, password and query.
        text: the requirement as the lock has it, with such a URL.
        needed_by: what the notes (`# via`) below it say.
    """

    requirement: Requirement
    text: str
    needed_by: list[str]


def parse_lines(text: str, where: str, notes: re.Pattern[str]) -> Iterator[Line]:
    """Read the lines of a lock, in order.

    Args:
        where: begins the messages.
        notes: finds where the names of a note begin.

    Raises:
        ConfigError: a line pins nothing; names its number and what to do.
    """
    current: Line | None = None
    begun, parts = 0, []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        begun = begun or number
        content = _COMMENT.sub("", line).strip()
        parts.append(content.removesuffix("\\").strip())
        if not content.endswith("\\"):
            entry = " ".join(filter(None, parts))
            if entry and (found := _parse(entry, f"{where}, line {begun}: ")):
                if current:
                    yield current
                current = found
            begun, parts = 0, []
        if current and (note := notes.search(line)):
            current.needed_by.extend(line[note.end() :].split(","))
    if current:
        yield current


def _parse(entry: str, where: str) -> Line | None:
    """Return what an entry pins; None if it names where packages come from."""
    option = re.split(r"[\s=]", entry, maxsplit=1)[0]
    if option in _WHERE:
        return None
    shown = without_user(entry)
    if option in _REFUSED:
        raise ConfigError(f"{where}{shown} asks for {_REFUSED[option]}")
    text, *options = _OPTIONS.split(entry)
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
        problem = f"is no requirement, expected `name==version` or `name @ URL`; {_WRITE}"
        raise ConfigError(f"{where}{shown} {problem}") from None
    except ValueError as error:
        raise ConfigError(f"{where}{shown} {error}") from None
    return Line(requirement=requirement, text=text, needed_by=[])


def without_user(text: str) -> str:
    """Return a text without the users, passwords and queries of its URLs, which may be secret."""
    return re.sub(r"(?<=://)[^/\s]*@(?=[^/\s]*)|\?[^\s#]*", "", text)


def _hash(option: str) -> str:
    match = _HASH.fullmatch(option.strip())
    if not match:
        raise ValueError(f"has the option {option}, expected --hash=sha256:... alone; {_WRITE}")
    return f"{match['name']}={match['digest']}"


def _check_version(requirement: Requirement) -> None:
    operators = [one.operator for one in requirement.specifier]
    if operators not in (["=="], ["==="]) or "*" in str(requirement.specifier):
        raise ValueError(f"pins no version, expected one as `name==1.2.3`; {_WRITE}")


def _pinned_url(url: str, hashes: list[str]) -> str:
    """Return a URL that pins its content, in one spelling.

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
                "names no commit, expected its 40 hex digits behind an @, as branches and tags move; write them there"
            )
    elif parts.scheme in ("http", "https", "file"):
        is_named = parts.scheme != "file" and parts.path.endswith(".whl") and not parts.query
        if not (is_named or is_hashed):
            raise ValueError(
                "has no digest, expected one as this URL may have another content tomorrow; add #sha256=... to it"
            )
    else:
        raise ValueError(
            "is of an unknown kind, expected git+https://...@COMMIT, or the URL of a wheel or source archive; use one"
        )
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", "&".join(fragment)))


def pinned(requirement: Requirement) -> str:
    """Return what a line pins a package to, as identities hold it: a version, or `@ URL`.

    Of a file on this machine, its name and digest.
    """
    if requirement.url is None:
        return str(requirement.specifier).removeprefix("==")
    if requirement.url.startswith("file:"):
        return f"@ {requirement.url.rpartition('/')[2]}"
    return f"@ {requirement.url}"
