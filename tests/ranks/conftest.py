"""A built dataset and a resolved run, for ranks on this machine."""

from tests.support.ranks import prepare  # noqa: F401  # a fixture
