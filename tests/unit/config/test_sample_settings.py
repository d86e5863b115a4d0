"""Settings of samples in identities: what counts where, what does not, what is refused."""

from collections.abc import Callable
from typing import Any

import pytest

from shardline.config import code_paths
from shardline.core.files import read_json
from shardline.errors import ConfigError
from shardline.pipeline import training as ranks
from shardline.training import rank_task
from tests.support.fake_project import FakeProject

DATA = """
import numpy

from mypkg.colours import FACTOR


class Augment:
    def __init__(self, size=8):
        self.size = size

    def __call__(self, sample, generator):
        return sample


class Scale:
    def __call__(self, sample, generator=None):
        return sample * FACTOR


def join(samples, longest):
    return list(samples)


class Join:
    def __init__(self, size=4, names=None):
        self.size = size

    def __call__(self, samples, longest):
        return samples[: self.size]
"""
AUGMENT = "mypkg.data:Augment"


@pytest.fixture
def project(fake: FakeProject) -> FakeProject:
    fake.workspace.write("mypkg/data.py", DATA)
    fake.workspace.write("mypkg/colours.py", "FACTOR = 2\n")
    return fake


@pytest.fixture
def ids(project: FakeProject) -> Callable[..., tuple[str, str, str]]:
    """Return the ids of dataset, training and evaluation of a run by its `data` settings."""

    def make(**data: Any) -> tuple[str, str, str]:
        project.config["defaults"]["data"] = data
        run = project.run("flat")
        return run.dataset.id, run.id, run.evaluation_id

    return make


@pytest.mark.parametrize(
    "data",
    [
        {"transform": AUGMENT},
        {"transform": {"type": AUGMENT, "size": 9}},
        {"transform": [AUGMENT, "mypkg.data:Scale"]},
        {"eval_transform": "mypkg.data:Scale"},
        {"collate": "nested"},
        {"collate": "mypkg.data:join"},
        {"collate": {"type": "mypkg.data:Join", "size": 2}},
        {"collate": {"type": "pad", "multiple": 8}},
        {"collate": {"type": "pad", "lengths": {"boxes": 64}}},
        {"pack": {"column": "tokens", "length": 8}},
        {"pack": {"column": "tokens", "length": 8, "method": "best_fit"}},
        {"pack": {"column": "tokens", "length": 8, "with": ["mask"]}},
        {"class_weights": "balanced"},
        {"class_weights": {"a": 1, "b": 2.5}},
        {"class_weights": "balanced", "epoch_samples": 100},
    ],
)
def test_what_is_set_counts_in_the_training(ids, data: dict[str, Any]) -> None:
    before, after = ids(), ids(**data)
    assert before[0] == after[0], "no dataset depends on what is done with its samples"
    assert before[1] != after[1]


def test_what_is_as_before_counts_nowhere(ids) -> None:
    before = ids()
    for data in (
        {"transform": None, "collate": None, "pack": None, "workers": 3},
        {"transform": [], "collate": "pad", "workers": "processes:2"},
        {"collate": {"type": "pad", "multiple": 1, "lengths": {}}, "workers": 0},
    ):
        assert ids(**data) == before


def test_workers_do_not_count_beside_what_does(ids) -> None:
    assert ids(transform=AUGMENT) == ids(transform=AUGMENT, workers="threads:7")
    pack = {"column": "tokens", "length": 8}
    assert ids(pack=pack) == ids(pack={**pack, "method": "concat", "with": []})
    assert ids(pack={**pack, "with": ["mask"]}) != ids(pack=pack)


def test_one_transform_however_it_is_written(ids) -> None:
    written = [AUGMENT, {"type": AUGMENT}, [AUGMENT], [{"type": AUGMENT}]]
    assert len({ids(transform=one) for one in written}) == 1
    assert (
        len({ids(transform=one) for one in (AUGMENT, [AUGMENT] * 2, [AUGMENT, "mypkg.data:Scale"])})
        == 3
    )


def test_one_object_however_its_collation_is_written(ids) -> None:
    path, arguments = "mypkg.data:Join", {"size": 2}
    written = [
        {"type": path, **arguments},
        {"_target_": path.replace(":", "."), **arguments},
        {"class_path": path, "init_args": arguments},
    ]
    assert len({ids(collate=one) for one in written}) == 1
    others = [path, {"type": path}, {"type": path, "size": 3}, {"type": path, "partial": True}]
    assert len({ids(collate=one) for one in (written[0], *others)}) == 5


def test_order_of_transforms_counts(ids) -> None:
    scale = "mypkg.data:Scale"
    assert ids(transform=[AUGMENT, scale]) != ids(transform=[scale, AUGMENT])
    assert ids(transform=scale)[1] != ids(eval_transform=scale)[1]


@pytest.mark.parametrize(
    ("data", "old", "new", "concerned"),
    [
        ({"transform": AUGMENT}, "size=8", "size=9", (True, False)),
        ({"transform": "mypkg.data:Scale"}, "size=8", "size=9", (False, False)),
        ({"eval_transform": AUGMENT}, "size=8", "size=9", (True, True)),
        ({"collate": "mypkg.data:join"}, "list(", "tuple(", (True, True)),
        ({"collate": "mypkg.data:join"}, "size=8", "size=9", (False, False)),
        ({"collate": {"type": "mypkg.data:Join"}}, "[: self.size]", "[self.size :]", (True, True)),
        (
            {"collate": {"type": "mypkg.data:Join", "names": {"type": "mypkg.data:Scale"}}},
            "* F",
            "+ F",
            (True, True),
        ),
        (
            {"transform": {"type": "callable", "of": {"type": "mypkg.data:Scale"}}},
            "* F",
            "+ F",
            (True, False),
        ),
        ({"transform": AUGMENT}, "import numpy\n", "import numpy\n# why\n", (False, False)),
    ],
)
def test_the_code_counts_that_is_reached(
    project, ids, data: dict[str, Any], old: str, new: str, concerned: tuple[bool, bool]
) -> None:
    def made_by() -> tuple[Any, Any]:
        run = project.run("flat")
        # without the digest of the training, which an evaluation reads
        return run.document, {**run.evaluation_document, "inputs": {}}

    ids(**data)
    before = made_by()
    project.workspace.write("mypkg/data.py", DATA.replace(old, new))
    assert tuple(a != b for a, b in zip(before, made_by(), strict=True)) == concerned


def test_packages_of_a_transform_count(project, ids) -> None:
    ids(transform="mypkg.data:Augment")
    packages = project.run("flat").document["environment"]["packages"]
    assert "numpy" in packages
    project.workspace.write(
        "my.lock", project.workspace.path.joinpath("my.lock").read_text().replace("2.4.6", "2.4.7")
    )
    assert project.run("flat").document["environment"]["packages"]["numpy"] == "2.4.7"


def test_a_class_that_moved_is_the_same_transform(
    project, ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = ids(transform=AUGMENT)
    project.seal_all()
    project.workspace.write("nets/deep.py", DATA)
    assert ids(transform="nets.deep:Augment", workers=3) == before
    started: list[Any] = []
    monkeypatch.setattr(ranks, "start_ranks", lambda *args, **_: started.extend(args))
    run = project.run("flat")
    ranks.train(project.plan("flat"), "log", str(run.model), {})  # type: ignore[arg-type]
    data = started[1].run.settings.data
    assert (data.transform, data.workers) == ("nets.deep:Augment", 3)
    found = read_json(run.folder / "run.json", remedy="")
    assert found["settings"]["data"]["transform"] == AUGMENT


def test_why_names_the_definition(project, ids) -> None:
    data = {"transform": [AUGMENT, "mypkg.data:Scale"], "collate": "mypkg.data:join"}
    ids(**data)
    project.seal_all()
    project.remember("run", "flat", project.run("flat").id)
    project.workspace.write("mypkg/data.py", DATA.replace("size=8", "size=9"))
    assert project.why("flat") == ["code of the transform: mypkg.data: Augment.__init__ changed"]
    project.workspace.write("mypkg/colours.py", "FACTOR = 3\n")
    assert project.why("flat") == [
        "code of the transform: mypkg.data: Augment.__init__ changed",
        "code of the transform 2: mypkg.colours: FACTOR changed",
    ]
    project.workspace.write("mypkg/colours.py", "FACTOR = 2\n")
    project.workspace.write("mypkg/data.py", DATA)
    ids(**{**data, "transform": None})
    assert project.why("flat") == [
        'data.transform [{"type": "own class"}, {"type": "own class"}] -> []'
    ]
    ids(**data, pack={"column": "tokens", "length": 9})
    assert project.why("flat")[0].startswith("data.pack")


def test_a_row_takes_the_place_of_a_table(project, ids) -> None:
    ids(transform={"type": AUGMENT, "size": 9}, collate={"type": "pad", "multiple": 8})
    project.rows[1] |= {
        "data.transform": "{type: mypkg.data:Scale}",
        "data.collate": "{type: pad, lengths: {x: 3}}",
    }
    data = project.run("flat").settings.data
    assert data.transform == {"type": "mypkg.data:Scale"}
    assert data.collate == {"type": "pad", "lengths": {"x": 3}, "multiple": 1}
    project.rows[1] |= {
        "data.transform": "[null, mypkg.data:Scale, [mypkg.data:Augment, mypkg.data:Scale]]"
    }
    project.rows[1] |= {"data.collate": "", "data.pack": "{column: tokens, length: 8}"}
    runs = [run for run in project.load().runs.values() if run.name.startswith("flat")]
    assert [run.settings.data.transform for run in runs] == [
        None, "mypkg.data:Scale", ["mypkg.data:Augment", "mypkg.data:Scale"],
    ]  # fmt: skip
    assert {run.settings.data.pack.method for run in runs} == {"concat"}
    project.rows[1] |= {"data.pack": "{column: tokens, length: 8, with: [mask]}"}
    data = next(
        run for run in project.load().runs.values() if run.name.startswith("flat")
    ).settings.data
    assert data.pack.with_ == ["mask"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"transform": "mypkg.data:Augmnt"}, 'data.transform=mypkg.data:Augmnt: .* no Augmnt; did you mean "Augment"'),
        ({"transform": {"size": 3}}, r"data.transform.type is missing, expected a shipped transform or an import path"),
        ({"transform": [AUGMENT, {"type": 3}]}, r"data.transform.1.type is 3, expected"),
        ({"eval_transform": "nope"}, "data.eval_transform=nope is neither one of .* nor an import path"),
        ({"collate": "pads"}, 'data.collate=pads is neither one of pad, nested, tuple nor .*; did you mean "pad"'),
        ({"collate": {"size": 3}}, "data.collate.type is missing, expected `pad` or an import path"),
        ({"collate": {"type": "nested"}}, "data.collate.type=nested has no arguments, .* write data.collate: nested"),
        ({"collate": {"type": "mypkg.data:Joint"}}, 'data.collate.type=mypkg.data:Joint: .* did you mean "Join"'),
        ({"class_weights": {"a": 0}}, "data.class_weights.a=0.0 is not more than 0"),
        ({"workers": "fibers:3"}, "data.workers=fibers:3 is not auto, 0, a number of threads"),
        ({"workers": "threads:0"}, "data.workers=threads:0 is not auto"),
        ({"class_weights": "balanced", "streams": 2}, "data.streams=2 cannot be combined with data.class_weights"),
        ({"pack": {"column": "t", "length": 2, "with": ["m", "m"]}}, 'data.pack.with=.* lists "m" twice; drop one'),
        ({"pack": {"column": "t", "length": 2, "with": "m"}}, "data.pack.with=\"m\" is not a list"),
        ({"pack": {"column": "t", "length": 2, "with_": []}}, 'data.pack.with_ is not a known key; .*"with"'),
    ],
)  # fmt: skip
def test_what_is_refused(ids, data: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        ids(**data)


def test_a_script_reads_its_samples_itself(project, ids) -> None:
    project.workspace.write("train.py", "print(1)\n")
    project.rows[1]["model"] = "script: train.py"
    with pytest.raises(ConfigError) as error:
        ids(transform=AUGMENT, collate="mypkg.data:join", pack={"column": "t", "length": 2})
    lines = str(error.value).splitlines()
    assert sorted(line.partition('"): ')[2].partition(" is given")[0].partition("=")[0] for line in lines) == [
        "data.collate", "data.pack", "data.transform",
    ]  # fmt: skip


def test_what_a_script_reads_by_shardline_io_counts_as_for_a_model(project, ids) -> None:
    project.workspace.write("train.py", "import batches\n")
    project.workspace.write("batches.py", "import shardline_io\n")
    project.rows[1]["model"] = "script: train.py"
    data = {"transform": {"type": AUGMENT, "size": 4}, "collate": "mypkg.data:join"}
    plain, first = ids(), ids(**data)
    counted = project.run("flat").document
    assert counted["settings"]["data"]["transform"] == [{"size": 4}]
    assert counted["settings"]["data"]["collate"] == {}
    assert set(counted["code"]) == {"model", "transform", "collate"}
    assert len({plain[1], first[1], ids(class_weights="balanced")[1]}) == 3
    project.workspace.write(
        "mypkg/data.py", DATA.replace("return sample\n", "return dict(sample)\n")
    )
    assert (ids()[1], ids(**data)[1] != first[1]) == (plain[1], True)


def test_a_shipped_transform_counts_by_its_version(
    ids, project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(code_paths.SHIPPED_TRANSFORMS, "grey", "mypkg.data:Scale")
    by_name = ids(transform={"type": "grey", "depth": 3})
    document = project.run("flat").document
    assert document["settings"]["data"]["transform"] == [{"type": "grey", "depth": 3}]
    assert document["versions"]["transforms"] == 1
    assert document["code"] == {}
    assert ids(transform={"type": "mypkg.data:Scale", "depth": 3}) == by_name


def test_another_order_of_samples_is_refused(project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.seal_all()
    run = project.run("flat")
    run_json = run.folder / "run.json"
    assert rank_task.read_run(run_json).run == run.id, "what holds none is of version 1"
    monkeypatch.setattr(rank_task, "ORDER_VERSION", 2)
    with pytest.raises(Exception, match=r"run.json has version 1 of the sample order, expected 2"):
        rank_task.read_run(run_json)
