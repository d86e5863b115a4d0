"""Two machines of namespaces, with ssh between them."""

from tests.support.lan import lan, switched_on  # noqa: F401  # fixtures
from tests.support.ranks import prepare  # noqa: F401  # a fixture
