"""The script of the charts that Shardline ships, so that a page does not depend on whether vl-convert is installed."""

import gzip
import sys

import altair as alt
import pytest

from shardline.core.errors import ConfigError
from shardline.report.template import bundle_file, javascript_bundle, made_bundle

VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def test_the_shipped_script_is_that_of_the_locked_package(request):
    import vl_convert

    script = vl_convert.javascript_bundle(vl_version=VERSION)
    if request.config.getoption("--regen"):
        bundle_file(VERSION).write_bytes(gzip.compress(script.encode(), 9, mtime=0))
    assert (
        gzip.decompress(bundle_file(VERSION).read_bytes()).decode()
        == script
        == made_bundle(VERSION)
    )


def test_a_page_has_the_same_script_without_the_package(monkeypatch):
    javascript_bundle.cache_clear()
    script = javascript_bundle()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    javascript_bundle.cache_clear()
    assert javascript_bundle() == script
    javascript_bundle.cache_clear()


def test_another_version_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r"Vega-Lite 5\.1 .*pip install 'shardline\[figures\]'"):
        made_bundle("5.1")
