"""What the charts hold: right data, right ideals, the same bytes, no name where it could be code."""

import json
import math
import re

import pytest
from msgspec import structs

from shardline.config.resolved import Size, Study
from shardline.records.measured import RankUsage, Resources
from shardline.records.reported_parts import Curve
from shardline.report.charts.curves import learning_curves
from shardline.report.charts.scaling_curves import Measured, scale, scaling_charts
from shardline.report.charts.series import Series, thin
from shardline.report.charts.setting_axis import shown
from shardline.report.charts.varied import Trial, effects, parallel_coordinates
from shardline.report.charts.workflow import lay_out
from shardline.report.figures import shares
from shardline.report.scaling_runs import view_study
from shardline.report.sealed import read_curves
from tests.support.chart_page import GRAPH, HOSTILE, group_of, run_of, trials


def rows_of(spec, field):
    """Return the rows of the data set that has this field."""
    return next(rows for rows in spec["datasets"].values() if field in rows[0])


def curve(**columns):
    return Curve(**{"steps": (1, 2), "values": (0.5, 0.4), **columns})


def test_epoch_and_time_come_with_each_point(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        {"step": step, "epoch": (step - 1) // 10, "wall_s": step * 30, "train_loss": 1 / step}
        for step in range(2, 25, 2)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_curves(path)["train_loss"]
    assert found.epochs == (0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2)
    assert found.wall_s[-1] == 720
    spec = learning_curves([Series(run="a", rank=0, curves={"train_loss": found})], ["train_loss"])
    row = rows_of(spec, "epoch")[0]
    # two epochs of ten steps, and four steps of the third
    assert row["epoch"] == pytest.approx([step / 10 for step in range(2, 25, 2)])
    assert row["time"] == [step / 2 for step in range(2, 25, 2)]
    assert spec["usermeta"]["axes"] == {
        "step": "step", "epoch": "epoch", "time": "training time, min",
    }  # fmt: skip


@pytest.mark.parametrize("strange", [None, "soon", math.nan, True])
def test_what_a_script_does_not_record_is_no_axis(tmp_path, strange):
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": 1, "loss": 2.0, "wall_s": 1.0}, {"step": 2, "loss": 1.0, "wall_s": strange}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = read_curves(path)["loss"]
    assert found.values == (2.0, 1.0)
    assert (found.epochs, found.wall_s) == ((), ())
    spec = learning_curves([Series(run="a", rank=0, curves={"loss": found})], ["loss"])
    assert list(spec["usermeta"]["axes"]) == ["step"]


def test_a_thinned_curve_keeps_its_columns_together():
    steps = tuple(range(1, 2001))
    long = Curve(
        steps=steps,
        values=tuple(math.sin(step) for step in steps),
        epochs=tuple(step // 100 for step in steps),
        wall_s=tuple(step / 8 for step in steps),
    )
    thinned = thin(long, 100)
    assert len(thinned.steps) <= 100
    assert thinned.epochs == tuple(step // 100 for step in thinned.steps)
    assert thinned.wall_s == tuple(step / 8 for step in thinned.steps)


def trial(rank, value, **settings):
    series = Series(run=f"run {rank}", rank=rank, curves={})
    return Trial(series=series, value=value, settings=settings)


def test_an_effect_has_the_axis_that_its_values_ask_for():
    found = [
        trial(0, 0.9, lr=0.1, width=64, model="cnn", seed=1, same=3),
        trial(1, 0.8, lr=0.001, width=32, model="mlp", seed=2, same=3),
        trial(2, 0.7, lr=0.01, width=32, model=None, seed=10, same=3),
    ]
    spec = effects(found, "accuracy")
    axes = [panel["layer"][1]["encoding"]["x"] for panel in spec["concat"]]
    assert [axis["title"] for axis in axes] == ["lr (log scale)", "width", "model", "seed"]
    assert [axis["type"] for axis in axes] == ["quantitative"] * 2 + ["nominal"] * 2
    assert [axis["scale"].get("type") for axis in axes[:2]] == ["log", None]
    assert axes[2]["scale"]["domain"] == ["cnn", "mlp", "–"]
    assert axes[3]["scale"]["domain"] == ["1", "2", "10"]  # not as text is sorted
    best = rows_of(spec, "value")[-1]  # on top of the others
    assert (best["run"], best["value"], best["s0"], best["s2"]) == ("run 0", 0.9, 0.1, "cnn")
    assert best["said"][:2] == ["accuracy 0.9", "lr 0.1"]


def test_parallel_coordinates_lie_where_the_values_do():
    found = [trial(0, 0.9, lr=0.1, width=64), trial(1, 0.8, lr=0.01, width=48),
             trial(2, 0.5, lr=0.001, width=32)]  # fmt: skip
    spec = parallel_coordinates(found, "accuracy", "max")
    lines = {row["run"]: row["at"] for row in rows_of(spec, "result")}
    assert lines == {"run 0": [1, 1, 1], "run 1": [0.5, 0.5, 0.75], "run 2": [0, 0, 0]}
    color = spec["layer"][1]["encoding"]["color"]["scale"]
    assert color["domain"] == [0.5, 0.8, 0.9]
    loss = parallel_coordinates(found, "mse", "min")
    lowest_is_best = loss["layer"][1]["encoding"]["color"]["scale"]
    assert lowest_is_best["range"] == color["range"][::-1]


@pytest.mark.parametrize("odd", [math.inf, math.nan, None, "auto", [1, 2], True])
def test_a_setting_that_is_not_always_a_number_has_categories(odd):
    found = [trial(0, 0.9, k=1, lr=0.1), trial(1, 0.8, k=odd, lr=0.2), trial(2, 0.7, k="1", lr=0.1)]
    for given in (found, found[::-1]):  # NaN sorts nowhere by itself
        spec = effects(given, "accuracy")
        assert spec["concat"][0]["layer"][1]["encoding"]["x"]["scale"]["domain"][0] == "1"
    json.dumps([spec, parallel_coordinates(found, "accuracy", "max")], allow_nan=False)


def test_nothing_varied_makes_no_chart():
    same = [trial(0, 0.9, lr=0.1), trial(1, 0.8, lr=0.1)]
    assert effects(same, "accuracy") is None
    assert effects([], "accuracy") is None
    one = [trial(0, 0.9, lr=0.1), trial(1, 0.8, lr=0.2)]
    assert parallel_coordinates(one, "accuracy", "max") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (0.1, "0.1"), (1e-5, "1e-05"), ("a", "a"), (True, "true"), ([1, 2], "[1, 2]")],
)
def test_settings_are_written_as_people_write_them(value, expected):
    assert shown(value) == expected


@pytest.mark.parametrize(
    ("values", "written"),
    [([], "–"), ([0.0125, 0.5], "1.2, 50.0 %"), ([0.1, *[0.2] * 7, 0.3], "10.0 to 30.0 %")],
)
def test_shares_of_many_ranks_are_their_range(values, written):
    assert shares(values) == written


def measured(ranks, **changes):
    known = {"duration_s": 100 / ranks + 10, "samples_per_s": 1000 * ranks**0.5, "loss": 0.3}
    return Measured(label=f"1x{ranks}", ranks=ranks, run=f"r{ranks}", **known | changes)


def test_efficiency_and_ideal_of_strong_scaling():
    sizes = scale([measured(4), measured(1), measured(2)], "strong")
    assert [size.measured.ranks for size in sizes] == [1, 2, 4]
    assert [size.ideal_duration_s for size in sizes] == [110, 55, 27.5]
    assert [size.ideal_samples_per_s for size in sizes] == [1000, 2000, 4000]
    assert sizes[2].speedup == pytest.approx(2)
    assert [size.efficiency for size in sizes] == pytest.approx([1, 2**-0.5, 0.5])


def test_ideal_time_of_weak_scaling_follows_the_work():
    unknown = scale([measured(1), measured(4)], "weak")
    assert [size.ideal_duration_s for size in unknown] == [110, 110]
    same_steps = [measured(1, samples=1000), measured(4, samples=4000)]
    assert scale(same_steps, "weak")[1].ideal_duration_s == 110
    same_epochs = [measured(1, samples=1000), measured(4, samples=1000)]
    assert scale(same_epochs, "weak")[1].ideal_duration_s == 27.5


def test_scaling_panels_hold_what_is_known():
    sizes = scale([measured(1, loss=None), measured(2, samples_per_s=None, loss=None)], "strong")
    spec = scaling_charts(sizes)
    titles = [panel["encoding"]["y"]["title"] for panel in spec["concat"]]
    assert titles == ["running time, s", "throughput, samples/s", "efficiency, %"]
    rows = rows_of(spec, "kind")
    assert {row["kind"] for row in rows} == {"measured", "ideal"}
    nothing = Measured(label="1x1", ranks=1, run="r")
    assert scale([nothing], "weak")[0].efficiency is None


def test_a_study_is_read_from_its_runs():
    runs = [run_of(f"r{ranks}", {"optim.lr": 0.1}, 0.9, ranks) for ranks in (1, 4)]
    sizes = tuple(
        Size(nodes=nodes, devices=2, run=f"r{2 * nodes // 2}-0123456789ab") for nodes in (1, 4, 8)
    )
    used = RankUsage(rank=0, host="n1", peak_rss_bytes=1, cpu_s=1.0)
    waits = [
        structs.replace(used, data_wait_s=wait, compute_s=compute)
        for wait, compute in ((1.0, 3.0), (0.0, 4.0))
    ]
    machine = {"num_cpus": 4, "memory_bytes": 8 * 10**9, "action": ""}
    runs = [
        structs.replace(run, resources=Resources(**machine, ranks=ranks))
        for run, ranks in zip(runs, (waits, [*waits, used]), strict=True)
    ]
    view = view_study(Study(name="s", run="r", mode="strong", sizes=sizes), runs)
    assert [size.measured.label for size in view.sizes] == ["1x2", "4x2"]  # 8x2 has not run yet
    first = view.sizes[0].measured
    assert (first.samples, first.step_s) == (600 * 64, 0.02)
    assert first.loss == runs[0].curves["val_loss"].values[-1]
    assert view.sizes[0].measured.waiting == [0.25, 0.0]
    assert "waiting for batches, %" in str(view.chart)
    assert not view.sizes[1].measured.waiting, "one of its ranks did not measure it"
    assert view.finding == (
        "8 ranks (4x2) reach 3.48 times the throughput of 2 (1x2): 87 % of the ideal."
    )
    empty = view_study(Study(name="s", run="r", mode="weak", sizes=sizes), [])
    assert (empty.chart, empty.finding) == (None, "No run of this study has finished yet.")


def test_the_workflow_flows_one_way():
    layout = lay_out(GRAPH)
    x = {box.node["rule"]: box.x for box in layout.boxes}
    assert all(x[first] < x[then] for first, then in GRAPH["edges"])
    assert x["resolve_run"] == x["seal_dataset"]  # as late as it may run: no arrow behind a box
    corners = {(box.x, box.y) for box in layout.boxes}
    assert len(corners) == len(layout.boxes)
    assert all(0 <= box.x <= layout.width - layout.box[0] for box in layout.boxes)
    assert all(0 <= box.y <= layout.height - layout.box[1] for box in layout.boxes)
    down = lay_out(GRAPH, downwards=True)
    assert down.width < layout.width
    assert down.height > layout.height


def names_in_code(node, path=""):
    """Yield where a specification has the hostile name, outside of what is only shown."""
    if isinstance(node, dict):
        for key, value in node.items():
            assert HOSTILE not in key
            yield from names_in_code(value, f"{path}.{key}")
    elif isinstance(node, list):
        for value in node:
            yield from names_in_code(value, path)
    elif isinstance(node, str) and HOSTILE in node:
        yield path


def test_names_are_values_never_fields_or_expressions():
    group = group_of(trials())
    found = [
        Trial(
            series=entry.series,
            value=entry.run.value,
            settings={**entry.run.varied_values, HOSTILE: index},
        )
        for index, entry in enumerate(group.entries)
    ]
    for spec in (
        effects(found, HOSTILE),
        parallel_coordinates(found, HOSTILE, "max"),
        group.chart,
    ):
        places = {re.sub(r"data-\w+", "data", place) for place in names_in_code(spec)}
        assert places
        shown_only = r"\.datasets\..*|.*\.scale\.domain|.*\.title"
        assert [place for place in places if not re.fullmatch(shown_only, place)] == []


def test_the_same_runs_give_the_same_bytes():
    def text():
        runs = trials()
        found = [
            Trial(series=e.series, value=e.run.value, settings=e.run.varied_values)
            for e in group_of(runs).entries
        ]
        specs = [
            group_of(runs).chart,
            effects(found, "accuracy"),
            parallel_coordinates(found, "accuracy", "max"),
            scaling_charts(scale([measured(1), measured(2)], "strong")),
        ]
        return json.dumps(specs, allow_nan=False)

    assert text() == text()
