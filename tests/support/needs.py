"""What tests need of the machine, and what of their parameters will run."""

import os

import pytest


def require(condition: object, message: str) -> None:
    """Skip a test on a machine that lacks what it needs; in CI, where it must be there, fail."""
    if not condition:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)


def params_to_run(request: pytest.FixtureRequest, name: str) -> set[str]:
    """Return the values of a parameter in those tests of this file that are to run."""
    items = [item for item in request.session.items if item.path == request.path]
    specs = [item.callspec for item in items if hasattr(item, "callspec")]
    return {spec.params[name] for spec in specs if name in spec.params}
