"""The plugin's own error, and the redaction of errors and texts."""

import re
from collections.abc import Iterable, Mapping

from snakemake_interface_common.exceptions import WorkflowError

# Names of variables whose values are never stored or shown.
_SECRET_NAME = re.compile(
    r"(^|_)(KEY|SECRET|TOKEN|PASSWORD|PASSWD|SAS|CREDENTIALS?|CONNECTION_?STRING)(_|$)", re.I
)
# Secrets that are recognised by their form: connection strings, SAS tokens, bearer tokens.
_SECRET_FORMS = re.compile(
    r"(?P<before>(?:AccountKey|SharedAccessKey|SharedAccessSignature|client_secret)=|[?&;]sig=|\bBearer\s+)"
    r"(?P<secret>[^\s;&\"'<>]+)",
    re.I,
)
# azureml-core's errors contain the service's answer as JSON, often twice and within other JSON ...
_ANSWER = re.compile(
    r'"code": *"(?P<code>[^"]+)".*?"message": *"(?P<message>(?:[^"\\]|\\.)*)"', re.S
)
# ... and azure-core's errors contain code and message twice.
_TWICE = re.compile(r"\((\w+)\) (.*?)\nCode: \1\nMessage: \2", re.S)
_PLACES = ("_FILE", "_PATH", "_DIR")  # these contain the path of a secret
_SHORTEST_SECRET = 8  # a shorter value would be found in ordinary text
HIDDEN = "***"


class AzureMLError(WorkflowError):
    """An error that the user can fix; one sentence with what was found and the remedy."""


class SdkError(Exception):
    """An error of an SDK that runs in another process, with the fields that this process needs.

    Attributes:
        kind: name of the error's class.
        status_code: HTTP status, or None without a response.
        retry_after_s: seconds that the service asks to wait.
        is_transient: whether the same request may succeed later.
    """

    def __init__(
        self,
        kind: str,
        text: str,
        status_code: int | None,
        retry_after_s: float | None,
        is_transient: bool,
    ) -> None:
        super().__init__(kind, text, status_code, retry_after_s, is_transient)  # for pickle
        self.kind = kind
        self.text = text
        self.status_code = status_code
        self.retry_after_s = retry_after_s
        self.is_transient = is_transient

    def __str__(self) -> str:
        return self.text


def is_secret_name(name: str) -> bool:
    """Return whether a variable with this name probably contains a secret."""
    return _SECRET_NAME.search(name) is not None and not name.upper().endswith(_PLACES)


def find_secrets(environment: Mapping[str, str], declared: Iterable[str]) -> dict[str, str]:
    """Return the values to hide, by variable: of variables with secret names, and keys within values.

    Args:
        environment: environment of the submitting process.
        declared: variables that the workflow declares with `envvars:`; keys within their values
            are hidden too.
    """
    names = set(declared) | {name for name in environment if is_secret_name(name)}
    secrets = {}
    for name in sorted(names & environment.keys()):
        value = environment[name]
        if is_secret_name(name) and len(value) >= _SHORTEST_SECRET:
            secrets[name] = value
        for number, match in enumerate(_SECRET_FORMS.finditer(value)):
            secrets[f"{name}[{number}]"] = match["secret"]
    return secrets


def redact(text: str, secrets: Mapping[str, str] | None = None) -> str:
    """Return the text without the given secrets, and without texts in the form of a secret."""
    for value in sorted((secrets or {}).values(), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return _SECRET_FORMS.sub(lambda match: match["before"] + HIDDEN, text)


def text_of(error: BaseException) -> str:
    """Return an error's kind and text in one line; for the service's answer, its code and message."""
    text = whole_text_of(error)
    if answer := _ANSWER.search(text):
        message = re.sub(r"\\[rn]", " ", answer["message"]).replace('\\"', '"')
        text = f"{answer['code']}: {message}"
    line = " ".join(_TWICE.sub(r"\1: \2", text).split())
    kind = error.kind if isinstance(error, SdkError) else type(error).__name__
    return f"{kind}: {line}" if line else kind


def whole_text_of(error: BaseException) -> str:
    """Return an error's text, even if `str` fails, as for some errors of azureml-core."""
    try:
        return str(error)
    except Exception:
        return str(getattr(error, "message", "") or "")
