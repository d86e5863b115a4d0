"""The libraries that draw, as one script."""

from functools import cache

import altair as alt
import vl_convert


@cache
def javascript_bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that needs no network (0.9 MB).

    The version of Vega-Lite is the one that the installed Altair writes. The text may stand
    between script tags as it is, and its names stay out of the page's global scope.
    """
    version = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
    script: str = vl_convert.javascript_bundle(vl_version=version)  # type: ignore[call-arg]
    script = script.replace("\r\n", "\n").replace("</script", r"<\/script")
    return "(() => {" + script.replace("<!--", r"<\!--") + "})();"
