"""A training's folder as trackers find it, and services that fail."""

from tests.support.tracked_training import no_login, serve, training  # noqa: F401  # fixtures
