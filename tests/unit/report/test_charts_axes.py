"""What charts' axes span and how they are labelled, of values of any size."""

import json
import math
import re

import altair as alt
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st

from shardline.records.reported_parts import Curve
from shardline.report.charts.axes import domain_of, is_log, log_ticks, short, y_axis
from shardline.report.charts.curves import learning_curves
from shardline.report.charts.series import Series

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
CONSTANT = st.tuples(NUMBERS, st.integers(1, 3)).map(lambda pair: [pair[0]] * pair[1])
NEARLY_CONSTANT = st.tuples(NUMBERS, st.floats(0, 1e-6)).map(
    lambda pair: [pair[0], pair[0] * (1 - pair[1])]
)
VALUES = st.lists(NUMBERS, min_size=1, max_size=8) | CONSTANT | NEARLY_CONSTANT


@given(VALUES)
def test_a_domain_holds_all_values_and_has_a_width_that_labels_can_show(values):
    low, high = domain_of(values)
    assert math.isfinite(high - low)
    assert high - low >= 0.99e-3 * max(abs(low), abs(high)) > 0 or low == -1 or high == 1
    assert high > low
    assert all(low <= short(value) <= high or is_close(short(value), low, high) for value in values)


def is_close(value: float, low: float, high: float) -> bool:
    """Return whether a value is an end but for the digits that charts leave out."""
    return min(abs(value - low), abs(value - high)) <= 1e-4 * max(abs(low), abs(high))


@given(VALUES)
def test_an_axis_of_any_values_is_valid_json_and_schema(values):
    text = json.dumps(
        alt.Chart(alt.InlineData(values=[]))
        .mark_line()
        .encode(y=y_axis("value:Q", values, "loss"))
        .to_dict(),
        allow_nan=False,
    )
    assert '"loss"' in text or '"loss (log scale)"' in text


@given(st.lists(st.floats(5e-324, 1.7e308), min_size=2, max_size=2).filter(is_log))
def test_a_logarithmic_axis_has_few_ticks_that_reach_over_its_values(ends):
    ticks = log_ticks(min(ends), max(ends))
    assert ticks == sorted(set(ticks))
    assert 2 <= len(ticks) <= 20
    assert all(0 < tick < math.inf for tick in ticks)


@pytest.mark.parametrize(
    "values", [[0.0884] * 3, [0.0884, 0.0884 + 1e-9], [0.0] * 2, [1e-30] * 2, [-3e12]]
)
def test_a_constant_curve_is_labelled_by_its_value(values):
    curve = Curve(steps=tuple(range(1, len(values) + 1)), values=tuple(values))
    spec = learning_curves([Series(run="a", rank=0, curves={"loss": curve})], ["loss"])
    svg = vl_convert.vegalite_to_svg(spec)
    vertical = svg.split("role-axis-label")[-1].partition("</g>")[0]
    labels = [
        float(text.replace("\u2212", "-")) for text in re.findall(">([^<>]+)</text>", vertical)
    ]
    assert len(set(labels)) == len(labels) >= 3
    assert values[0] in labels


def test_panels_that_lack_a_run_share_one_scale_of_colors():
    whole, part = (Curve(steps=(1, 2), values=(0.5, 0.4)) for _ in range(2))
    series = [
        Series(run="a", rank=0, curves={"train_loss": whole}),
        Series(run="b", rank=1, curves={"train_loss": whole, "val_loss": part}),
    ]
    spec = learning_curves(series, ["train_loss", "val_loss"])
    domains = [
        layer["encoding"]["color"]["scale"] for panel in spec["concat"] for layer in panel["layer"]
    ]
    assert len(domains) == 4
    assert all(domain == domains[0] for domain in domains)
