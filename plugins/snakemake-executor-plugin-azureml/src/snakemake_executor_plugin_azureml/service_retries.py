"""Transient errors of the service, and the wait before a retry."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from snakemake_executor_plugin_azureml.errors import AzureMLError, SdkError, whole_text_of

T = TypeVar("T")

_EXPIRED = 401  # the service no longer accepts the token
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# By name, so that neither SDK is imported for this check: errors of azure-core, requests, urllib3
# and msrest that mean that no answer came.
_CONNECTION_ERRORS = frozenset(
    {
        "ServiceRequestError",
        "ServiceResponseError",
        "ServiceRequestTimeoutError",
        "ServiceResponseTimeoutError",
        "IncompleteReadError",
        "ChunkedEncodingError",
        "ClientRequestError",
        "ProtocolError",
        "MaxRetryError",
        "RequestException",
        "ConnectTimeout",
        "ReadTimeout",
    }
)
# azureml-core raises some answers as errors with the status only in their text.
_STATUS_IN_TEXT = re.compile(r"\bCode: (\d{3})\b|\"status_code\": (\d{3})\b")
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 60.0


class Interrupted(AzureMLError):
    """The workflow is being cancelled, so no request is retried."""


class ClientGoneError(Exception):
    """The SDK's process has ended; a new client starts another process."""


class Throttle:
    """Limits the rate of calls."""

    def __init__(self, per_second: float) -> None:
        self._interval_s = 1.0 / per_second
        self._next = 0.0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        """Wait until it is the caller's turn."""
        with self._lock:
            now = time.monotonic()
            turn = max(self._next, now)
            self._next = turn + self._interval_s
        time.sleep(turn - now)


def status_code(error: BaseException) -> int | None:
    """Return the HTTP status in an error of either SDK, or None if the error has no status."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        for value in (getattr(cause, "status_code", None), getattr(response, "status_code", None)):
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    found = _STATUS_IN_TEXT.search(whole_text_of(error))
    return int(found[1] or found[2]) if found else None


def retry_after_s(error: BaseException, now: datetime | None = None) -> float | None:
    """Return the seconds that the service asks to wait (RFC 9110, 10.2.3); None without a request."""
    for cause in _causes(error):
        if isinstance(cause, SdkError):
            return cause.retry_after_s
        headers = getattr(getattr(cause, "response", None), "headers", None) or {}
        for name in ("retry-after-ms", "x-ms-retry-after-ms"):
            if (value := _header(headers, name)) and value.isdigit():
                return int(value) * 1e-3
        value = _header(headers, "Retry-After")
        if value and value.strip().isdigit():
            return float(value)
        if value:
            try:
                then = parsedate_to_datetime(value)
            except (TypeError, ValueError):
                continue
            return max(0.0, (then - (now or datetime.now(UTC))).total_seconds())
    return None


def needs_new_client(error: BaseException) -> bool:
    """Return whether the request may succeed with a new client, which has a new token or process."""
    return status_code(error) == _EXPIRED or isinstance(error, ClientGoneError)


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, AzureMLError):
        return False
    if isinstance(error, SdkError):
        return error.is_transient
    status = status_code(error)
    if status is not None:
        return status in _TRANSIENT_STATUS
    return any(
        isinstance(cause, ConnectionError | TimeoutError)
        or any(base.__name__ in _CONNECTION_ERRORS for base in type(cause).__mro__)
        for cause in _causes(error)
    )


def retry(
    function: Callable[[], T],
    *,
    minutes: float,
    stop: threading.Event,
    renew: Callable[[], None],
    notice: Callable[[BaseException, float], None],
) -> T:
    """Call the function until it succeeds, as long as its errors are transient.

    Args:
        minutes: time after which the last error is raised.
        stop: set when the workflow is cancelled; this ends the wait at once.
        renew: called when a new client is needed, before one further call.
        notice: called with the error and the seconds until the next call.

    Raises:
        Interrupted: `stop` was set while waiting.
        Exception: the function's last error.
    """
    import tenacity

    renewals = iter([True])  # a token that is rejected twice in a row has not just expired

    def is_worth_it(error: BaseException) -> bool:
        if needs_new_client(error) and next(renewals, False):
            renew()
            return True
        return is_transient(error)

    backoff = tenacity.wait_random_exponential(multiplier=_FIRST_WAIT_S, max=_LONGEST_WAIT_S)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_s = retry_after_s(error) if error else None
        # Jitter on top, so that rejected clients do not all retry at once.
        return backoff(state) if asked_s is None else asked_s + tenacity.wait_random(0, 1)(state)

    def before_sleep(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None and status_code(error) != _EXPIRED:
            notice(error, state.upcoming_sleep)

    def sleep(seconds: float) -> None:
        if stop.wait(seconds):
            raise Interrupted("the workflow is being cancelled; no further request is sent")

    attempts = tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_worth_it),
        stop=tenacity.stop_after_delay(60 * minutes),
        wait=wait,
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
    return attempts(function)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that it wraps; both SDKs wrap errors of lower layers."""
    seen: set[int] = set()
    pending: list[Any] = [error]
    while pending:
        cause = pending.pop(0)
        if isinstance(cause, BaseException) and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            pending += [
                cause.__cause__,
                cause.__context__,
                getattr(cause, "inner_exception", None),
                getattr(cause, "reason", None),
            ]


def _header(headers: Any, name: str) -> str | None:
    value = headers.get(name) or headers.get(name.lower())
    return str(value) if value is not None else None
