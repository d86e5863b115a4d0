"""Solving conda environments with rattler, the conda solver as a library."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardline.core.errors import ConfigError
from shardline.core.urls import without_secrets
from shardline.identity.package_lock import PLATFORM, Pin, parse_pin, without_token

if TYPE_CHECKING:
    from rattler import Client, Config, RepoDataRecord

_TIMEOUT_S = 300  # per request, such as a channel's whole list of packages


def client(timeout_s: int | None = None) -> "tuple[Config, Client]":
    """Return rattler's settings on this machine (mirrors, proxies, logins), and a client with them."""
    from rattler import Client, Config

    config = Config.load_from_default_locations("rattler")
    return config, Client.from_config(config, timeout=timeout_s)


def solve(
    specs: Sequence[str], *, channels: Sequence[str], virtual_packages: Mapping[str, str], what: str
) -> list[Pin]:
    """Find packages that satisfy all specs.

    Args:
        specs: conda match specs.
        channels: names or URLs, in order of priority.
        virtual_packages: version by name of system features of the target
            machines, such as `__glibc`. This machine is not queried, since the
            environment may be for others.
        what: name of the environment in messages.

    Raises:
        ConfigError: there is no solution (the message contains the solver's
            explanation), or a channel is wrong or cannot be reached.
    """
    for channel in channels:
        if (shown := without_token(without_secrets(channel))) != channel:
            raise ConfigError(
                f"conda.channels: {shown} was given with a password or token, which pin files "
                "would contain; remove it, and set RATTLER_AUTH_FILE to a file that contains it"
            )
    return asyncio.run(_solve(specs, channels, virtual_packages, what))


async def _solve(
    specs: Sequence[str], channels: Sequence[str], virtual_packages: Mapping[str, str], what: str
) -> list[Pin]:
    import rattler
    from rattler import exceptions

    config, http = client(_TIMEOUT_S)
    try:
        records = await rattler.solve(
            [rattler.Channel(name) for name in channels],
            list(specs),
            gateway=rattler.Gateway.from_config(config, client=http),
            platforms=[PLATFORM, "noarch"],
            virtual_packages=[
                rattler.GenericVirtualPackage(
                    rattler.PackageName(name), rattler.Version(version), rattler.BuildString("0")
                )
                for name, version in virtual_packages.items()
            ],
        )
    except exceptions.SolverError as error:
        raise ConfigError(
            f"{what} has no solution on {', '.join(channels)}:\n{error}\n"
            "change the versions in pyproject.toml and run `make lock`, map names in conda.names, or add a channel"
        ) from None
    except (
        exceptions.InvalidChannelError,
        exceptions.InvalidUrlError,
        exceptions.GatewayError,
        exceptions.FetchRepoDataError,
    ) as error:
        reason = without_secrets("; ".join(str(error).split("\nCaused by: ")))
        raise ConfigError(
            f"{what}: conda.channels={', '.join(channels)} cannot be read ({reason}); check names and network, "
            "or set a mirror or a folder (file:///...), see docs/how-to/lock-environments.md"
        ) from None
    except (
        exceptions.InvalidMatchSpecError,
        exceptions.InvalidPackageNameError,
        exceptions.InvalidVersionError,
    ) as error:
        raise ConfigError(
            f"{what}: conda cannot parse a name or version ({error}); fix conda.names or conda.virtual_packages"
        ) from None
    return [_pin(record) for record in records]


def _pin(record: "RepoDataRecord") -> Pin:
    if record.sha256 is None:
        raise ConfigError(
            f"{record.url}: its channel lists no SHA-256, so it cannot be pinned; index the channel again"
        )
    return parse_pin(f"{record.url}#sha256:{record.sha256.hex()}")
