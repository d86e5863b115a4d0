"""Objects in a run's settings: their code counts, not their import paths and spellings."""

from typing import Any

import pytest

from shardline.config.objects import unread_objects
from shardline.errors import ConfigError
from tests.support.fake_project import FakeProject

NETS = """
class Dense:
    def __init__(self, width=8, act=None):
        self.width = width

class Act:
    slope = 0.1
"""


@pytest.fixture
def own(fake: FakeProject) -> FakeProject:
    fake.workspace.write("mypkg/nets.py", NETS)
    del fake.rows[1]
    return fake


def document(own: FakeProject, net: Any, **row: str) -> Any:
    own.config["defaults"]["model_args"] = {"net": net}
    own.rows[0] = {
        **{k: v for k, v in own.rows[0].items() if not k.startswith("model_args")},
        **row,
    }
    return own.run("net").document


def test_one_object_has_one_identity_in_each_spelling_and_place(own: FakeProject) -> None:
    first = document(
        own, {"type": "mypkg.nets:Dense", "width": 4, "act": {"type": "mypkg.nets:Act"}}
    )
    act = {"class_path": "mypkg.nets.Act"}
    assert document(own, {"_target_": "mypkg.nets.Dense", "width": 4, "act": act}) == first
    own.workspace.write("elsewhere/deep.py", NETS)
    moved = {"class_path": "elsewhere.deep.Dense", "init_args": {"width": 4, "act": act}}
    assert document(own, moved) == first
    assert "mypkg" not in str(first["settings"])
    assert first["settings"]["model_args"] == {"net": {"width": 4, "act": {}}}
    assert first["code"].keys() == {"model", "model_args.net", "model_args.net.act"}


@pytest.mark.parametrize(
    "other",
    [{"type": "mypkg.nets:Dense", "width": 5}, {"type": "mypkg.nets:Act", "width": 4},
     {"type": "mypkg.nets:Dense", "width": 4, "partial": True}, {"type": "mypkg.nets:Dense", "_args_": [4]},
     {"width": 4}],
)  # fmt: skip
def test_another_object_has_another_identity(own: FakeProject, other: Any) -> None:
    first = document(own, {"type": "mypkg.nets:Dense", "width": 4})
    assert document(own, other) != first


def test_its_code_counts_and_why_names_it(own: FakeProject) -> None:
    first = document(own, {"type": "mypkg.nets:Dense"})
    own.seal_all()
    own.workspace.write("mypkg/nets.py", NETS.replace("slope = 0.1", "slope = 0.2"))
    assert own.run("net").document == first, "of a class that is not reached"
    own.workspace.write(
        "mypkg/nets.py", NETS.replace("self.width = width", "self.width = 2 * width")
    )
    assert own.run("net").evaluation_document["code"] != {}
    assert own.why("net") == ["code of the model_args.net: mypkg.nets: Dense.__init__ changed"]


def test_a_class_of_a_package_counts_by_name_and_version(own: FakeProject) -> None:
    first = document(own, {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 2})
    assert first["sample_code"] == {"model_args.net": "torch.nn:Linear"}
    assert "torch" in first["environment"]["packages"]
    assert document(own, {"type": "torch.nn:Linear", "in_features": 2, "out_features": 2}) == first
    assert (
        document(own, {"type": "torch.nn:Bilinear", "in_features": 2, "out_features": 2}) != first
    )


def test_a_grid_varies_one_argument_of_an_object(own: FakeProject) -> None:
    own.rows[0] |= {"model_args.net.type": "mypkg.nets:Dense", "model_args.net.width": "[4, 8]"}
    runs = {run.name: run for run in own.load().runs.values()}
    assert runs.keys() == {"net_width=4", "net_width=8"}
    assert runs["net_width=8"].settings.model_args["net"] == {
        "type": "mypkg.nets:Dense",
        "width": 8,
    }
    assert runs["net_width=8"].code_paths["model_args.net"] == "mypkg.nets:Dense"


def test_a_grid_varies_the_class(own: FakeProject) -> None:
    own.rows[0]["model_args.net.type"] = "[mypkg.nets:Dense, mypkg.nets:Act]"
    assert len(own.load().runs) == 2


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        ({"type": "mypkg.nets:Dnese"}, r'model_args.net.type=mypkg.nets:Dnese: .* did you mean "Dense"\?'),
        ({"_target_": "mypkg.nest.Dense"}, r"model_args.net._target_=mypkg.nest:Dense: no module mypkg.nest"),
        ([{"type": "mypkg.nets:Dense", "act": {"class_path": "nopkg.A"}}],
         r"model_args.net.0.act.class_path=nopkg:A: no module nopkg"),
    ],
)  # fmt: skip
def test_an_unknown_class_is_found_before_any_job(
    own: FakeProject, net: Any, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        document(own, net)


def test_transforms_and_metrics_are_read_in_each_spelling(own: FakeProject) -> None:
    own.workspace.write(
        "mypkg/data.py", "class Augment:\n    def __init__(self, size, act=None):\n        pass\n"
    )

    def found(transform: Any, metric: Any) -> Any:
        own.config["defaults"] |= {
            "data": {"transform": transform},
            "evaluation": {"metrics": [metric]},
        }
        run = own.run("net")
        return run.document, run.evaluation_document

    act = {"type": "mypkg.nets:Act"}
    metric = {"type": "torchmetrics.classification:MulticlassF1Score", "num_classes": 3}
    first = found({"type": "mypkg.data:Augment", "size": 8, "act": act}, metric)
    assert first[0]["settings"]["data"]["transform"] == [{"size": 8, "act": {}}]
    assert first[0]["code"].keys() == {"model", "transform", "transform.act"}
    assert first[1]["settings"]["metrics"] == [metric]
    score = "torchmetrics.classification.MulticlassF1Score"
    hydra = {"_target_": "mypkg.data.Augment", "size": 8, "act": act}
    assert found(hydra, {"_target_": score, "num_classes": 3}) == first
    cli = [{"class_path": "mypkg.data.Augment", "init_args": {"size": 8, "act": act}}]
    assert found(cli, {"class_path": score, "init_args": {"num_classes": 3}}) == first
    with pytest.raises(
        ConfigError, match=r'data.transform.0=mypkg.data:Augmnt.*did you mean "Augment"'
    ):
        found([{"_target_": "mypkg.data.Augmnt"}], metric)


def test_a_type_that_lacks_the_colon_is_told_and_stays_text(own: FakeProject) -> None:
    table = {"a": {"type": "mypkg.nets.Dense"}, "b": [{"type": "torch.nn.Tanh"}], "c": {"type": "relu.6"},
             "d": {"type": "mypkg.nets.None_of"}, "e": {"type": "mypkg.nets:Dense"}, "f": {"type": 3}}  # fmt: skip
    own.config["defaults"]["model_args"] = table
    run, code = own.run("net"), own.load().code
    assert run.document["settings"]["model_args"]["a"] == table["a"]
    why = "is plain text, since it has no colon; write"
    assert unread_objects(run.settings, run.model_class, code) == [
        f"model_args.a.type=mypkg.nets.Dense {why} mypkg.nets:Dense for the object that it names",
        f"model_args.b.0.type=torch.nn.Tanh {why} torch.nn:Tanh for the object that it names",
    ]


def test_a_script_gets_tables_as_they_are(own: FakeProject) -> None:
    own.workspace.write("train.py", "print(1)\n")
    table = {"type": "no.such:Net", "_target_": "x.Y"}
    found = document(own, table, model="script: train.py")
    assert found["settings"]["model_args"] == {"net": table}
