"""Secrets to be planted: names x kinds x the ways in which a text holds them, from a seed."""

import base64
import html
import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

NAMES = (
    "hub_token", "api_token", "HF_TOKEN", "client_secret", "password", "db_password", "apiKey", "api-key", "access_key",
    "AWS_SECRET_ACCESS_KEY", "secret", "credentials", "private_key", "auth_token", "connection_string",
)  # fmt: skip
_ALNUM, _UPPER = string.ascii_letters + string.digits, string.ascii_uppercase + string.digits
_TEMPLATES = (
    "{name}={value} lr=1", "{name}: {value}", '{{"{name}": "{value}", "lr": 1}}', "{{'{name}': '{value}'}}",
    "--{name} {value} --lr 1", '{{\\"{name}\\": \\"{value}\\"}}', "Model({name}='{value}', lr=1)",
)  # fmt: skip
_QUOTED = tuple(template for template in _TEMPLATES if any(mark in template for mark in "'\""))


@dataclass(frozen=True)
class Planted:
    """A secret in a text.

    Attributes:
        name: of the setting or variable that it would be the value of.
        value: the secret, as a setting would hold it.
        text: what holds it, as a message would.
        needles: what must not be found.
    """

    name: str
    value: str
    text: str
    needles: tuple[str, ...]

    def spellings(self) -> Iterator[bytes]:
        """Yield the needles as files may hold them."""
        for needle in self.needles:
            coded = base64.b64encode(needle.encode()).decode()
            for form in (
                needle,
                json.dumps(needle)[1:-1],
                quote(needle, safe=""),
                html.escape(needle),
                coded,
            ):
                yield form.encode()  # fmt: skip


def plant(seed: int, count: int = 60) -> list[Planted]:
    """Return so many secrets."""
    rng = random.Random(seed)
    kinds = (
        _by_form,
        _by_name,
        _by_form,
        _by_name,
        _in_url,
        _by_name,
        _in_header,
        _by_name,
        _by_form,
        _in_key,
    )
    return [kinds[number % len(kinds)](rng) for number in range(count)]


def _some(rng: random.Random, length: int, alphabet: str = _ALNUM) -> str:
    # some of each, as a random key of this length would have
    return "".join([*rng.choices(alphabet, k=length - 3), *rng.sample("47", 1), "Q", "8"])


def _by_form(rng: random.Random) -> Planted:
    coded = (
        base64.urlsafe_b64encode(json.dumps({"sub": rng.random()}).encode()).decode().rstrip("=")
    )
    value = rng.choice(
        [
            f"hf_{_some(rng, 34)}", f"sk-{_some(rng, 48)}", f"sk-proj-{_some(rng, 20)}T3BlbkFJ{_some(rng, 20)}",
            f"AKIA{_some(rng, 16, _UPPER)}", f"ghp_{_some(rng, 36)}", f"github_pat_{_some(rng, 60)}",
            f"glpat-{_some(rng, 20)}", f"xoxb-{rng.randrange(10**11)}-{_some(rng, 24)}", f"AIza{_some(rng, 35)}",
            f"sk_live_{_some(rng, 24)}", f"eyJhbGciOiJIUzI1NiJ9.{coded}.{_some(rng, 43)}",
        ]
    )  # fmt: skip
    text = rng.choice(("401 for {}", "load_model('{}')", "[{}]", "{}", "path/{}/x", "a={}&b=2"))
    return Planted("revision", value, text.format(value), (value,))


def _by_name(rng: random.Random) -> Planted:
    name = rng.choice(NAMES)
    kind = rng.randrange(3)
    if kind == 0:
        value, template = _some(rng, rng.randrange(20, 50)), rng.choice(_TEMPLATES)
    elif kind == 1:
        value, template = f"P@ss/{_some(rng, 14)}%+:#{_some(rng, 4)}", rng.choice(_TEMPLATES)
    else:
        words = [_some(rng, 7, string.ascii_lowercase) for _ in range(4)]
        name, value, template = (
            "passphrase",
            " ".join(words),
            rng.choice([*_QUOTED, "{name}: {value}"]),
        )
    return Planted(name, value, template.format(name=name, value=value), (value,))


def _in_url(rng: random.Random) -> Planted:
    secret = _some(rng, 24)
    url, needle = rng.choice(
        [
            (f"https://me:{secret}@host.example/a.csv", secret),
            (f"https://me:p@{secret}@host.example/a.csv", secret),
            (f"https://me:p/{secret}@host.example/a.csv", secret),
            (f"https://{secret}@host.example/x.git", secret),
            (f"https://host.example/a.csv?sv=1&sig={secret}%3D", secret),
            (f"s3://bucket/a?X-Amz-Credential=A&X-Amz-Signature={secret}", secret),
        ]
    )
    return Planted("revision", url, f"cannot open {url} (403)", (needle,))


def _in_header(rng: random.Random) -> Planted:
    secret = _some(rng, 30)
    login = base64.b64encode(f"me:{secret}".encode()).decode()
    text, needle = rng.choice(
        [
            (f"Authorization: Bearer {secret}", secret), (f"{{'Authorization': 'Basic {login}'}}", login),
            (f"Authorization: Basic {login}", login), (f'{{"authorization": "token {secret}"}}', secret),
            (f"curl -H 'Authorization: {secret}'", secret),
        ]
    )  # fmt: skip
    return Planted("api_token", secret, text, (needle,))


def _in_key(rng: random.Random) -> Planted:
    lines = [_some(rng, 64) for _ in range(3)]
    kind = rng.choice(("RSA ", "", "OPENSSH "))
    text = "\n".join(
        [f"-----BEGIN {kind}PRIVATE KEY-----", *lines, f"-----END {kind}PRIVATE KEY-----"]
    )
    return Planted("certificate", text, text, tuple(lines))
