"""Masking of secrets in texts and documents, found by pattern, name and value.

All published texts pass through `mask`, all published documents through `published`.
"""

import html
import json
import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, lru_cache, partial
from typing import Any
from urllib.parse import quote, quote_plus

from shardline.core.credentials import LOGIN, PRIVATE_KEY, URL_QUERY, URL_TOKEN, URL_USER, forms_for

MASK = "***"
# Names of the variables in `runtime.pass_env`, for the child processes of this process.
PASSED = "SHARDLINE_PASS_ENV"
_NO_TEXT = (int, float, type(None))
_CORE = (
    r"(?:tokens?|secrets?|passw(?:or)?ds?|passphrase|pwd|sshpass|credentials?|jwt|connection[_-]?string|[_-]sas|[_-]pat|"
    r"(?:user|root|admin|db|database|smtp|mail|ftp|login|my|key|ssh)[_-]?pass|"
    r"(?:api|access|account|private|secret|signing|shared|encryption|auth|subscription|service|client|storage)[_-]?keys?)"
)
_WORDS = re.compile("token|secret|pass|pwd|credential|jwt|connection|[_-]sas|[_-]pat|key")
_NAME = re.compile(rf"[\w.-]*?{_CORE}", re.IGNORECASE)
# Tokens of a text, not of a login.
_TOKENS_OF_TEXT = re.compile(
    r"(?:.*[._-])?(?:(?:pad|eos|bos|cls|sep|unk|mask|max|min|num|n|new|start|end|stop|special|image|img|video|audio|vision|"
    r"text|next|prev|previous|last|first|per|each|sot|eot|boi|eoi|fim|class|register|prefix|suffix|separator|unknown|"
    r"padding|bad|suppress|extra|added|decoder|total|input|output|prompt|generated|vocab|sub|out)[_-]?)+tokens?"
    r"|(?:.*\.)?tokens",
    re.IGNORECASE,
)
# Values that are no secrets, among them versions, such as the version of the package detect-secrets.
_VERSION = r"=?\d+(?:\.\d+)+(?:(?:a|b|rc|\.?post|\.?dev)\d+)?(?:\+[\w.]+)?(?: or .*| \(.*)?"
_HARMLESS = re.compile(
    rf"(?:{_VERSION}|none|null|true|false|str|bytes|int|optional|\**|\$\{{?\w+\}}?|<[^>]*>|\[[A-Z_]+\]|</?\w+>)[,)\]]*",
    re.IGNORECASE,
)
_QUOTED = r"(?P<quote>\\*['\"])(?P<quoted>(?:(?!(?P=quote))(?:\\.|[^\n]))*)(?P=quote)"
# Both patterns begin at the end of a name. The start of the name is searched only after a match.
_ASSIGNED = re.compile(
    rf"(?P<core>{_CORE})(?P<sign>\\*['\"]?\]?\s{{0,9}}(?::=|=>|[:=])\s{{0,9}})(?:{_QUOTED}|(?P<bare>[^\s&;,'\"}}\\]+))",
    re.IGNORECASE,
)
_OPTION = re.compile(
    rf"(?P<core>{_CORE})(?P<sign>\s{{1,9}})(?:{_QUOTED}|(?P<bare>[^\s-]\S*))", re.IGNORECASE
)
_BEFORE = re.compile(r"[\w.-]*\Z")
_LONGEST_NAME = 120
_LINE = re.compile(r"(?P<before>passphrase\s{0,9}[:=]\s{0,9})[^\s'\"\\][^\n]*", re.IGNORECASE)
_SIGNATURE = re.compile(
    r"(?P<before>[?&;](?:sig|key|signature)=)(?!\$)[^\s&;,'\"}]+", re.IGNORECASE
)
_AUTHORIZATION = re.compile(
    r"(?P<before>\bauthorization\\*['\"]?\s*(?:[:,]|=(?!=))\s*\\*['\"]?(?:(?:basic|bearer|token|digest|negotiate|apikey)\s+)?)"
    r"[^\s'\"\\]+|(?P<bearer>\bbearer )[\w.~+/=-]{4,}",
    re.IGNORECASE,
)
_BASIC = re.compile(r"(?P<before>\bbasic )(?P<coded>[A-Za-z0-9+/]{8,}={0,2})", re.IGNORECASE)
_VARIABLE = re.compile(
    r"(?:.*_)?(?:KEY|SECRET|TOKEN|PASS|PASSWORD|PASSWD|PASSPHRASE|SAS|CREDENTIALS?|JWT|PAT|CONNECTION_?STRING)(?:_.*)?|"
    r".*(?:PASSWORD|TOKEN|SECRET|SSHPASS)",
    re.IGNORECASE,
)
_PLACES = ("_FILE", "_PATH", "_DIR", "_SOCK", "_URL", "_URI", "_ID", "_NAME", "_TYPE", "_ENV")
# Lengths of values: below the first a value is ordinary text, from the second on it is not.
_SHORTEST, _SURE = 8, 16
# Values that jobs compute with or that a digest addresses are not masked. The config rejects credentials
# in these places.
_KEPT = frozenset(
    {"settings", "varied", "identity", "model", "model_class", "model_args", "schema", "classes", "reference", "shards",
     "environment"}
)  # fmt: skip


def mask(text: str, values: Iterable[str] = ()) -> str:
    """Return a text with secrets masked.

    Masked are credentials of a known form, private keys, users, passwords and queries of URLs, and
    values after `Authorization` or a name such as `token`, `..._PASSWORD` or `--api-key`. Values of
    environment variables are masked if the variable is named like a secret or listed in
    `runtime.pass_env`, also as quoted in JSON, URLs and HTML.

    Args:
        text: the text.
        values: further known secrets.
    """
    return masking(values)(text)


def masking(values: Iterable[str] = ()) -> Callable[[str], str]:
    """Return a function that masks texts as `mask` does; it reads the environment once, which takes 0.1 ms."""
    return partial(_mask, known=_spellings((*values, *known_values(os.environ))))


def _mask(text: str, known: Iterable[tuple[str, re.Pattern[str] | None]]) -> str:
    for value, pattern in known:
        if value in text:
            text = pattern.sub(MASK, text) if pattern else text.replace(value, MASK)
    lower = text.lower()
    if "private key" in lower:
        text = PRIVATE_KEY.sub(MASK, text)
    if "@" in text or "%40" in text:
        text = URL_USER.sub(rf"\g<kept>{MASK}", text)
        text = LOGIN.sub(f"{MASK}@", text)
    if "/t/" in text:
        text = URL_TOKEN.sub(rf"\g<kept>{MASK}", text)
    if "?" in text:
        text = URL_QUERY.sub(rf"\g<kept>{MASK}", text)
    for _, pattern in forms_for(text):
        text = pattern.sub(MASK, text)
    if "authoriz" in lower or "bearer " in lower:
        text = _AUTHORIZATION.sub(lambda m: f"{m['before'] or m['bearer']}{MASK}", text)
    if "basic " in lower:
        text = _BASIC.sub(_mask_basic, text)
    if "passphrase" in lower:
        text = _LINE.sub(rf"\g<before>{MASK}", text)
    if "sig" in lower or "key=" in lower:
        text = _SIGNATURE.sub(rf"\g<before>{MASK}", text)
    if _WORDS.search(lower):
        for pattern in (_ASSIGNED, _OPTION):
            text = pattern.sub(_mask_named, text)
    return text


def _mask_named(match: re.Match[str]) -> str:
    value = match["bare"] if match["bare"] is not None else match["quoted"]
    if not value or not _is_named(match) or _HARMLESS.fullmatch(value):
        return match[0]
    mark = match["quote"] or ""
    return f"{match['core']}{match['sign']}{mark}{MASK}{mark}"


def _is_named(match: re.Match[str]) -> bool:
    """Return whether the name in a match is the name of a secret."""
    before = _BEFORE.search(match.string, max(0, match.start() - _LONGEST_NAME), match.start())
    name = f"{before[0] if before else ''}{match['core']}"
    begin = match.start() - (len(before[0]) if before else 0)
    if (
        match.string[begin - 1 : begin] == "/" and ":" in match["sign"]
    ):  # as in `/etc/passwd: is ...`
        return False
    return is_secret(name) and (match.re is _ASSIGNED or name.startswith("--"))


def assigned(text: str) -> Iterator[str]:
    """Yield the value of each secret that a text sets, as in `--api-key VALUE` and `token=VALUE`."""
    for pattern in (_ASSIGNED, _OPTION):
        for match in filter(_is_named, pattern.finditer(text)):
            yield match["bare"] if match["bare"] is not None else match["quoted"]


def _mask_basic(match: re.Match[str]) -> str:
    try:
        is_login = b":" in b64decode(match["coded"], validate=True)
    except ValueError:
        is_login = False
    return f"{match['before']}{MASK}" if is_login else match[0]


@lru_cache(4096)
def is_secret(name: str) -> bool:
    """Return whether a name, or the last part of a dotted key, is the name of a secret.

    `pad_token`, `max_tokens` and similar names are about tokens of a text, so they are not.
    """
    last = name.rpartition(".")[2]
    return _NAME.fullmatch(last) is not None and not _TOKENS_OF_TEXT.fullmatch(last)


def mask_values(document: Any) -> Any:
    """Return a JSON document with its texts masked, and with values of secret names masked as a whole."""
    return _masked(
        document, _spellings(tuple(known_values(os.environ))), frozenset(), is_named=False
    )


def published(document: Any) -> Any:
    """Return a document for sealing and writing: masked, except for values that jobs compute with."""
    return _masked(document, _spellings(tuple(known_values(os.environ))), _KEPT, is_named=False)


def _masked(value: Any, known: Any, kept: frozenset[str], *, is_named: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            _mask(key, known) if isinstance(key, str) else key: item
            if key in kept
            else _masked(item, known, kept, is_named=is_named or is_secret(str(key)))
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            # most items of long lists are numbers, for each of which a call takes longer
            item if isinstance(item, _NO_TEXT) else _masked(item, known, kept, is_named=is_named)
            for item in value
        ]
    if not isinstance(value, str):
        return value
    return MASK if is_named and value and not _HARMLESS.fullmatch(value) else _mask(value, known)


def pass_on(names: Iterable[str]) -> None:
    """Mask the values of environment variables in this process and its child processes."""
    if names := sorted(names):
        os.environ[PASSED] = ",".join(names)


def known_values(env: Mapping[str, str]) -> list[str]:
    """Return the values of variables that are named like secrets or listed in `runtime.pass_env`."""
    passed = set(env.get(PASSED, "").split(","))
    found = [env[name] for name in env if name in passed or _is_secret_variable(name, env[name])]
    # a key of several lines is printed line by line
    return [line for value in found for line in (value, *value.splitlines()) if _is_telling(line)]


def _is_secret_variable(name: str, value: str) -> bool:
    return not value.startswith(("/", "~")) and _is_secret_name(name)


@cache
def _is_secret_name(name: str) -> bool:
    is_place = name.upper().endswith(_PLACES)
    return name != PASSED and not is_place and _VARIABLE.fullmatch(name) is not None


def _is_telling(value: str) -> bool:
    # the value of `token=synthetic` must not mask every "synthetic"
    return len(value) >= _SURE or (len(value) >= _SHORTEST and not value.isalpha())


@lru_cache(16)
def _spellings(values: tuple[str, ...]) -> list[tuple[str, re.Pattern[str] | None]]:
    """Return each value in all its quoted forms, longest first; short values match only as whole words."""
    forms = {
        form
        for value in filter(None, values)
        for form in (
            value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1],
            quote(value, safe=""), quote(value), quote_plus(value), html.escape(value), html.escape(value, quote=False),
        )
    }  # fmt: skip
    return [
        (form, None if len(form) >= _SURE else re.compile(rf"(?<![A-Za-z0-9]){re.escape(form)}(?![A-Za-z0-9])"))
        for form in sorted(forms, key=len, reverse=True)
    ]  # fmt: skip
