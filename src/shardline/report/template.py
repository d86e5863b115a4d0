"""Template of the report page, and the filters that format its values."""

import base64
import gzip
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
from jinja2 import ChainableUndefined, Environment, FileSystemLoader, Template, Undefined
from markupsafe import Markup

from shardline.config.settings.run_settings import default_settings
from shardline.core.errors import ConfigError
from shardline.core.extras import missing_package
from shardline.core.nested import flatten
from shardline.core.package import report_folder
from shardline.core.repeats import is_share
from shardline.report.document import figures_of
from shardline.report.figures import FILTERS


def load_template() -> Template:
    """Return the template of the page, which includes the other files of its folder."""
    folder = report_folder()
    # Chainable: a missing optional key is empty at any depth.
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=ChainableUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {
        "bytes": _show_bytes,
        "csp_hash": _csp_hash,
        "duration": _show_duration,
        "difference": _show_difference,
        "figures": figures_of,
        "flatten": lambda settings: list(flatten(settings, by_name=True).items()),
        "score": _show_score,
        "show": _show,
        "show_devices": _show_devices,
        "sort_key": _sort_key,
        "spread": _show_spread,
        **FILTERS,
        "breakable": _breakable,
    }
    environment.policies["json.dumps_kwargs"] = {
        "separators": (",", ":"), "allow_nan": False,
        "ensure_ascii": False,  # an escape would hide a character from `visible`
    }  # fmt: skip
    environment.globals["defaults"] = default_settings()
    environment.globals["asset"] = lambda name: (folder / name).read_text(encoding="utf-8")
    return environment.get_template("page.html.j2")


# Places where a long name may wrap: behind a separator, but not inside a number such as 1e-3.
_SEPARATOR = re.compile(r"(?<=[,;:/=_])(?=\w)|(?<=\w-)(?<!\d[eE]-)(?=\w)|(?<=[^\W\d])(?=\.[^\W\d])")

_SMALL = re.compile(r"([\d.]+[eE]-\d+)")


def _breakable(text: str) -> Markup:
    """Return a name as HTML that wraps only behind separators."""
    return Markup("<wbr>").join(map(_with_whole_numbers, _SEPARATOR.split(text)))


def _with_whole_numbers(text: str) -> Markup:
    """Return a part of a name as HTML in which numbers such as 1e-05 do not wrap."""
    whole = Markup('<span class="whole">{}</span>').format
    parts = _SMALL.split(text)
    return Markup("").join(whole(one) if place % 2 else one for place, one in enumerate(parts))


def _csp_hash(script: str) -> str:
    """Return a script as a source of a Content-Security-Policy."""
    return "'sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() + "'"


def _show_duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _show_score(value: float | None, metric: str) -> str:
    if value is None:
        return "–"
    is_percent = is_share(metric) and 0 <= value <= 1
    return f"{100 * value:.1f} %" if is_percent else _show(float(value))


def _show_spread(value: float, metric: str) -> str:
    """Format a standard deviation like its mean."""
    return f"{100 * value:.1f} %" if is_share(metric) else _show(float(value))


def _show_difference(ends: Sequence[float], metric: str) -> str:
    """Format a difference or the ends of its interval; shares differ in percentage points."""
    if is_share(metric):
        return " to ".join(f"{100 * end:+.1f}" for end in ends).replace("-", "−") + " points"
    return " to ".join(f"{'+' if end > 0 else ''}{_show(float(end))}" for end in ends)


def _show_bytes(number: float | Undefined | None) -> str:
    if number is None or isinstance(number, Undefined):
        return "–"
    units = iter(("bytes", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while number >= 999.5 and unit != "TB":
        number, unit = number / 1000, next(units)
    return f"{number:.3g} {unit}"


def _show(value: Any) -> str:
    """Format a setting or a metric for people."""
    if value is None:
        return "–"
    if not isinstance(value, float):
        return value if isinstance(value, str) else json.dumps(value)
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.0f}" if 999.95 <= abs(value) < 1e7 else f"{value:.4g}"


def _show_devices(devices: Sequence[str]) -> str:
    kinds = Counter(str(device).partition(":")[0] for device in devices)
    return ", ".join(f"{count} × {kind}" for kind, count in kinds.items())


def _sort_key(value: Any) -> Any:
    """Return the sort key of a value for the page's script; "" if unknown."""
    unknown = isinstance(value, Undefined) or value is None or value != value
    return "" if unknown else value


@cache
def javascript_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that needs no network (0.9 MB).

    The version of Vega-Lite fits the installed Altair. The script is safe between script tags, and defines no
    global names except its exports.
    """
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    file = bundle_file(version)
    # the shipped script first: the page must not depend on whether vl-convert is installed
    script = gzip.decompress(file.read_bytes()).decode() if file.exists() else made_bundle(version)
    script = script.replace("\r\n", "\n").replace("</script", r"<\/script")
    return "(() => {" + script.replace("<!--", r"<\!--") + "})();"


def made_bundle(version: str) -> str:
    """Return the script of the charts that vl-convert makes.

    Args:
        version: version of Vega-Lite, such as `6.4`.

    Raises:
        ConfigError: vl-convert is missing; the message names the extra that contains it.
    """
    try:
        import vl_convert
    except ModuleNotFoundError:
        what = f"the report with Vega-Lite {version} of altair {alt.__version__}"
        raise ConfigError(missing_package("vl_convert", what)) from None
    script: str = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]
    return script


def bundle_file(version: str) -> Path:
    """Return the path of the shipped script for a version of Vega-Lite."""
    return report_folder() / "vega" / f"vega-lite-{version}.js.gz"
