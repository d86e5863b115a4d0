"""The report's charts as Vega-Lite specifications, and the libraries that draw them."""

from shardline.report.charts.bundle import javascript_bundle
from shardline.report.charts.curves import (
    MAX_POINTS_PER_CURVE,
    MAX_POINTS_PER_PANEL,
    learning_curves,
)
from shardline.report.charts.scaling import Measured, Scaled, scale, scaling_charts
from shardline.report.charts.series import OTHER_COLOR, OTHER_RUNS, PALETTE, Curve, Series, thin
from shardline.report.charts.varied import Trial, effects, parallel_coordinates
from shardline.report.charts.workflow import Layout, lay_out

__all__ = [
    "MAX_POINTS_PER_CURVE",
    "MAX_POINTS_PER_PANEL",
    "OTHER_COLOR",
    "OTHER_RUNS",
    "PALETTE",
    "Curve",
    "Layout",
    "Measured",
    "Scaled",
    "Series",
    "Trial",
    "effects",
    "javascript_bundle",
    "lay_out",
    "learning_curves",
    "parallel_coordinates",
    "scale",
    "scaling_charts",
    "thin",
]
