"""Patterns of credentials: API keys, tokens, private keys and URLs with a login.

Most patterns come from detect-secrets. Its detectors by entropy, keyword and public address are left
out, because they also match digests, ordinary words and hosts.
"""

import importlib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

# Modules of detect_secrets.plugins whose patterns need no name beside the value, each with a text that
# every match contains. Without this text the module is not imported. Left out are artifactory (`AP...`
# is an ordinary word), npm (its pattern begins anywhere) and discord.
_PLUGINS = {
    "aws": "A3T|ABIA|ACCA|AKIA|ASIA|aws|AWS", "azure_storage_key": "AccountKey=", "github_token": "gh[pousr]_",
    "gitlab_token": "gl[a-z]{2,5}-|GR1348941", "jwt": "eyJ", "mailchimp": "-us", "openai": "T3BlbkFJ",
    "pypi_token": "pypi-", "sendgrid": r"SG\.", "slack": r"xox|hooks\.slack", "square_oauth": "sq0csp-", 
    "stripe": "[rs]k_live_", "telegram_token": ":AA", "twilio": "AC[a-z0-9]{32}|SK[a-z0-9]{32}",
}  # fmt: skip
# Credentials that detect-secrets 1.5 does not know, or only at one length: kind, begin, pattern.
_OWN = (
    ("Hugging Face token", "hf_|api_org_", r"(?:hf|api_org)_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{16,}"),
    ("API key", "sk-", r"sk-(?:\w{1,12}-){0,3}(?=[a-zA-Z_]{0,20}(?:[0-9]|(?<=[a-z])[A-Z]))\w{16,}[\w-]*"),
    ("GitHub token", "gh[pousr]_|github_pat_", r"(?:gh[pousr]|github_pat)_\w{16,}"),
    ("GitLab token", "gl[a-z]{2,5}-", r"gl(?:pat|dt|ft|soat|rt|cbt|ptt|oas)-[\w-]{16,}"),
    ("Google API key", r"AIza|ya29\.|GOCSPX-", r"AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}"),
    ("Slack token", "xox|xapp-", r"xox[abeoprs]-[\w-]{10,}|xapp-[\w-]{20,}"),
    ("npm token", "npm_", r"npm_[A-Za-z0-9]{30,}"),
    ("PyPI token", "pypi-", r"pypi-[\w-]{16,}"),
    ("Docker Hub token", "dckr_", r"dckr_(?:pat|oat)_[\w-]{16,}"),
    ("Databricks token", "dapi", r"dapi[0-9a-f]{32}(?:-\d)?"),
    ("DigitalOcean token", "do[opr]_v1_", r"do[opr]_v1_[0-9a-f]{64}"),
    ("HashiCorp Vault token", r"hv[sbr]\.", r"hv[sbr]\.[\w-]{20,}"),
    ("JSON Web Token", "eyJ", r"eyJ[\w=-]{6,}\.eyJ[\w=-]{6,}(?:\.[\w.+/=-]*)?"),
)  # fmt: skip
_BEGINS = re.compile("|".join([*_PLUGINS.values(), *(begin for _, begin, _ in _OWN)]))
_BEGIN = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,40}-----"
_END_KEY = r"-----END [A-Z0-9 ]{1,80}-----"
BEGIN_KEY = re.compile(_BEGIN)
PRIVATE_KEY = re.compile(rf"{_BEGIN}.*?(?:{_END_KEY}|\Z)", re.DOTALL)
# The group `kept` is not masked; the secret follows it. Names of Azure storage containers also come
# before an @, and a port is not a password.
URL_USER = re.compile(
    r"(?P<kept>(?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs):(?:\\?/){2}|%3A%2F%2F)"
    r"(?P<user>[^\s'\"/@:\[]{0,200}:(?!\d{1,5}(?:[/?#\s'\"]|$))(?:(?!://)[^\s'\"]){0,500}|[^\s'\"/?#]{1,500}?)(?=@|%40)(?!@[^\s'\"/]{0,500}@)",
    re.IGNORECASE,
)
URL_QUERY = re.compile(
    r"(?P<kept>:(?:\\?/){2}[^\s?'\"]{0,2000}\?)(?!\$\{\w+\}(?:[\s'\")]|$))(?P<query>[^\s'\")]+)"
)
# The token in the URL of a package of a private conda channel.
URL_TOKEN = re.compile(
    r"(?P<kept>:(?:\\?/){2}[^\s'\"/]{1,300}/t/)[^\s'\"/]{1,300}(?=/[^\s'\"]{1,300}\.(?:conda|tar\.bz2))"
)
# A login without a scheme, as in addresses of hosts and registries. `name:tag@sha256:...` is an image, and
# `run:name@last` a base of a run.
LOGIN = re.compile(
    r"(?<![\w./@:+\\-])(?!mailto:)(?!run:[^\s'\"@:]{1,250}@[a-z]{1,8}(?![\w.-]))[A-Za-z_][\w.+-]{0,63}:(?!/)[^\s'\"\[\](){}]{1,200}"
    r"@(?!sha(?:256|384|512):)(?=[A-Za-z0-9\[])",
    re.IGNORECASE,
)
_SIGNED = re.compile(
    r"(?i)(?:^|[&;])(?:x-(?:amz|goog)-(?:signature|credential|security-token)|sig|signature|sas|(?:\w+[_-])?token|"
    r"(?:api[_-]?|access[_-]?|subscription-|account)?key|awsaccesskeyid|secret|passw(?:or)?d|auth|code)=(?!\$)[^&;]"
)
_VARIABLE = re.compile(r"\$\{\w+\}|\$\w+|\*+")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_LONG_PART = re.compile(r"[A-Za-z0-9+=]{16,}")


def forms_for(text: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield kind and pattern of each credential that a text may contain."""
    if not _BEGINS.search(text):
        return
    for kind, begin, pattern in _OWN:
        if re.search(begin, text):
            yield kind, _bounded(pattern)
    for plugin, begin in _PLUGINS.items():
        if re.search(begin, text):
            yield from _forms_of(plugin)


@cache
def _forms_of(plugin: str) -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Return kinds and patterns of a detect-secrets module; the first import takes 0.2 s."""
    # imported by name: detect-secrets changes no result, so no identity should contain its version
    module = importlib.import_module(f"detect_secrets.plugins.{plugin}")
    detectors: list[Any] = [one for one in vars(module).values() if isinstance(one, type)]
    return tuple(
        (str(detector.secret_type), _bounded(form.pattern, form.flags))
        for detector in detectors
        if detector.__module__ == module.__name__
        for form in detector().denylist
    )


@cache
def _bounded(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a pattern that matches whole words only, so that no part of a digest matches."""
    return re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9_-])", flags)


def credential_in(text: str, *, has_secret_name: bool = False) -> str | None:
    """Return the kind of credential in a setting's value, or None.

    Args:
        has_secret_name: whether the setting is named like a secret; then any long random text counts.
    """
    if PRIVATE_KEY.search(text):
        return "a private key"
    for match in URL_USER.finditer(text):
        user = match["user"]
        if ":" in user and not _VARIABLE.fullmatch(user.partition(":")[2]):
            return "a URL with a password"
        if ":" not in user and user != "git" and not _VARIABLE.fullmatch(user):
            return "a URL with user information"
    if any(
        not _VARIABLE.fullmatch(match[0].partition(":")[2].removesuffix("@"))
        for match in LOGIN.finditer(text)
    ):
        return "a login with a password"
    if any(_SIGNED.search(match["query"]) for match in URL_QUERY.finditer(text)):
        return "a URL with a signature"
    for kind, pattern in forms_for(text):
        if pattern.search(text):
            return f"the form of a credential ({kind})"
    return "a long random text" if has_secret_name and is_random(text) else None


def is_random(text: str) -> bool:
    """Return whether a text is long and looks random."""
    if _VARIABLE.search(text) or re.search(r"\s|://|^[/.~<\[]", text):
        return False
    if _UUID.search(text) or any(map(_is_mixed, _LONG_PART.findall(text))):
        return True
    digits = sum(map(str.isdigit, text))
    is_cased = text not in (text.lower(), text.upper())
    return is_cased and digits > 2 and len(text) > 19 and len(set(text)) > 11


def _is_mixed(part: str) -> bool:
    digits = sum(map(str.isdigit, part))
    is_cased = part not in (part.lower(), part.upper())
    return len(set(part)) > 7 and (digits > 1 or (len(part) > 23 and is_cased))
