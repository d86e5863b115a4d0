"""The web application: what is common to all of the service's hosts."""

import base64
import json
import re
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from flask import Flask, Response, g, jsonify, request
from werkzeug.exceptions import HTTPException

from tests.azureml.emulator.blobs import make_blobs
from tests.azureml.emulator.classic import make_classic
from tests.azureml.emulator.constants import RESOURCE_GROUP, SUBSCRIPTION, WORKSPACE, is_blob_host
from tests.azureml.emulator.faults import REQUEST_KINDS, Faults
from tests.azureml.emulator.history import make_history
from tests.azureml.emulator.jobs import now
from tests.azureml.emulator.management import make_management
from tests.azureml.emulator.tracking import make_tracking
from tests.azureml.emulator.workspace import ServiceError, Workspace

PROVIDER = "/providers/Microsoft.MachineLearningServices/workspaces/"
WORKSPACE_PATH = re.compile(
    rf"/+(?P<front>.*?)/*subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)"
    rf"{re.escape(PROVIDER)}(?P<workspace>[^/]+)(?P<rest>/.*)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Request:
    """A request as it came, and how it was answered; status 0 means that it was not."""

    method: str
    host: str
    path: str
    query: str
    body: bytes
    status: int
    token: str

    def json(self) -> Any:
        """Return the body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class Front:
    """Turns the paths of the service's hosts into the routes of one application.

    `https://HOST/FRONT/subscriptions/.../workspaces/NAME/REST` becomes `/FRONT/workspace/REST`;
    the account's blobs lie below `/blob`.
    """

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Route one request."""
        path = environ["azureml.path"] = environ["PATH_INFO"]
        match = WORKSPACE_PATH.fullmatch(path)
        if is_blob_host(environ.get("HTTP_HOST", "")):
            path = "/blob" + path
        elif match:
            known = (match["subscription"], match["group"], match["workspace"])
            mine = (SUBSCRIPTION, RESOURCE_GROUP, WORKSPACE)
            here = "workspace" if known == mine else "unknown-workspace"
            path = "/" + "/".join(filter(None, [match["front"], here])) + (match["rest"] or "")
        environ["PATH_INFO"] = re.sub("/+", "/", path)
        return self._application(environ, start_response)


def make_application(workspace: Workspace, faults: Faults, log: list[Request]) -> Front:
    """Return the application; it writes every request to the log."""
    app = Flask(__name__)
    app.url_map.strict_slashes = False
    lock = threading.Lock()

    def note(status: int) -> None:
        if not g.get("noted"):
            g.noted = True
            with lock:
                log.append(
                    Request(
                        request.method, request.host, request.environ["azureml.path"],
                        request.query_string.decode(), request.get_data(), status,
                        request.headers.get("Authorization", "").removeprefix("Bearer "),
                    )
                )  # fmt: skip

    @app.before_request
    def go_wrong() -> Response | None:
        url = f"{request.method} https://{request.host}{request.environ['azureml.path']}"
        g.fault = faults.take(url, REQUEST_KINDS)
        if g.fault is None:
            return _check_token()
        kind, options = g.fault.kind, g.fault.options
        if kind == "hang":
            note(0)
            _wait_for_hang_up()
            _hang_up()
            return Response()  # that nobody hears
        if kind == "slow":
            time.sleep(options.get("seconds", 5.0))
        if kind == "expired-token":
            return _expired()
        if kind in ("429", "500"):
            answer = _problem(int(kind), FAULT_WORDS[kind][0], FAULT_WORDS[kind][1])
            if kind != "500":
                answer.headers["Retry-After"] = str(options.get("retry_after", 1))
            return answer
        return _check_token()

    @app.after_request
    def finish(answer: Response) -> Response:
        dropped = g.fault is not None and g.fault.kind == "drop"
        note(0 if dropped else answer.status_code)
        if dropped:
            _hang_up()
        answer.headers["x-ms-request-id"] = str(uuid.uuid4())
        return answer

    @app.errorhandler(ServiceError)
    def refuse(error: ServiceError) -> Response:
        return _problem(error.status, error.code, str(error))

    @app.errorhandler(Exception)
    def fail(error: Exception) -> Response:
        if isinstance(error, HTTPException) and error.code:
            words = f"the emulator has no {request.method} {request.path} ({error.name})"
            return _problem(error.code, "NotFound", words)
        traceback.print_exc(file=sys.stderr)
        return _problem(500, "InternalServerError", f"the emulator failed: {error!r}")

    for blueprint in (make_blobs, make_management, make_history, make_classic, make_tracking):
        app.register_blueprint(blueprint(workspace))
    return Front(app)


FAULT_WORDS = {
    "429": ("TooManyRequests", "Too many requests. Please retry later."),
    "500": ("InternalServerError", "An internal server error occurred. Please try again."),
}


def _problem(status: int, code: str, message: str) -> Response:
    """Return an error as Resource Manager and run history both write it."""
    error: dict[str, Any] = {
        "code": code,
        "message": message,
        "target": None,
        "details": [],
        "innerError": None,
    }
    answer = jsonify({"error": error, "correlation": {"request": str(uuid.uuid4())}, "time": now()})
    answer.status_code = status
    return answer


def _check_token() -> Response | None:
    """Refuse a request without a bearer token that is still good; signatures are not checked."""
    # The address of a blob holds its own signature; where the hosts are is no secret.
    if is_blob_host(request.host) or request.path == "/discovery":
        return None
    try:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        claims = token.split(".")[1]
        decoded = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
        # A job's first token is near its end, and a busy machine may need minutes until a job renews it.
        is_renewed = request.path.endswith("/token")
        return _expired() if decoded["exp"] < time.time() and not is_renewed else None
    except (IndexError, KeyError, ValueError):
        return _problem(401, "AuthenticationFailed", "Authentication failed: no bearer token.")


def _expired() -> Response:
    words = "The access token expiry UTC time is earlier than the current UTC time."
    answer = _problem(401, "ExpiredAuthenticationToken", words)
    answer.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
    return answer


def _wait_for_hang_up() -> None:
    """Wait until the client ends the connection."""
    with suppress(OSError):  # however it does
        while request.environ["werkzeug.socket"].recv(1):
            pass


def _hang_up() -> None:
    """End the connection; werkzeug then finds nobody to answer."""
    with suppress(OSError):  # the client did
        request.environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
