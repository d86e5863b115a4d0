"""What several of these tests share."""

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.support.browser import start_browser


@pytest.fixture(scope="module")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """A browser for all tests of a file."""
    browser = start_browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.quit()
