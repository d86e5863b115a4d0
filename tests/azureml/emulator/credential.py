"""A credential for tests: tokens as the emulator wants them, from no identity at all."""

import base64
import datetime
import json
import os
import time
from typing import Any, NamedTuple

from tests.azureml.emulator.constants import TENANT

LIFETIME = "AZUREML_EMULATOR_TOKEN_S"  # a variable: seconds for which a token is good


class AccessToken(NamedTuple):
    """What azure-core expects of `get_token`."""

    token: str
    expires_on: int

    @property
    def expires_at(self) -> str:
        """Its end, as the service writes it."""
        return datetime.datetime.fromtimestamp(self.expires_on, datetime.UTC).isoformat()


def make_token(seconds: float, *, audience: str = "", **claims: str) -> AccessToken:
    """Return a token that is good for so long."""
    expires = int(time.time() + seconds)
    told = {
        "aud": audience,
        "exp": expires,
        "iat": int(time.time()),
        "tid": TENANT,
        "oid": TENANT,
        "upn": "tester@example.com",
        "name": "tester",
        **claims,
    }
    parts = [{"alg": "none", "typ": "JWT"}, told]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts]
    return AccessToken(b".".join([*encoded, b"unsigned"]).decode(), expires)


class TestCredential:
    """A token credential in azure-core's sense."""

    __test__ = False  # its name notwithstanding

    def __init__(self) -> None:
        self.count = 0

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        """Return a new token for a scope."""
        self.count += 1
        seconds = float(os.environ.get(LIFETIME, "3600"))
        audience = scopes[0].removesuffix("/.default") if scopes else ""
        return make_token(seconds, audience=audience, jti=str(self.count))

    def close(self) -> None:
        """Hold nothing that would need closing."""


def make_credential() -> TestCredential:
    """Return a credential that the emulator accepts."""
    return TestCredential()
