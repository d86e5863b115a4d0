"""Optimisers and schedules by import path, groups and frozen parameters: identity and messages."""

from typing import Any

import pytest

from shardline.core.nested import with_values
from shardline.errors import ConfigError
from tests.support.fake_project import FakeProject

LION = """
class Lion:
    def __init__(self, params, lr=0.1):
        self.lr = lr
"""


@pytest.fixture
def own(fake: FakeProject) -> FakeProject:
    fake.workspace.write("mypkg/optim.py", LION)
    del fake.rows[1]
    fake.rows[0].pop("optim.lr")
    return fake


def run(own: FakeProject, **settings: Any) -> Any:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    own.config["defaults"] = with_values({"global_batch": 8, "devices": 1}, given)
    return own.run("net")


def test_an_optimiser_counts_by_code_and_arguments_not_by_path(own: FakeProject) -> None:
    first = run(own, optim__name="mypkg.optim:Lion", optim__args={"betas": [0.9, 0.95]})
    assert "name" not in first.document["settings"]["optim"]
    assert first.document["settings"]["optim"]["args"] == {"betas": [0.9, 0.95]}
    assert first.document["code"].keys() == {"model", "optim"}
    assert first.evaluation_document["code"].keys() == {"model"}
    own.workspace.write("elsewhere/deep.py", LION)
    moved = run(own, optim__name="elsewhere.deep.Lion", optim__args={"betas": [0.9, 0.95]})
    assert moved.document == first.document
    own.workspace.write("elsewhere/deep.py", LION.replace("0.1", "0.2"))
    assert own.run("net").document != first.document


def test_optimisers_of_a_package_count_by_name_and_version(own: FakeProject) -> None:
    first = run(
        own, optim__name="torch.optim:RAdam", schedule__name="torch.optim.lr_scheduler.StepLR"
    )
    assert first.document["sample_code"] == {
        "optim": "torch.optim:RAdam", "schedule": "torch.optim.lr_scheduler:StepLR",
    }  # fmt: skip
    assert run(own, optim__name="torch.optim.RAdam").document["sample_code"] == {
        "optim": "torch.optim:RAdam"
    }
    assert (
        run(own, optim__name="torch.optim:NAdam").id != run(own, optim__name="torch.optim:RAdam").id
    )
    assert run(own, optim__name="adam").id != run(own, optim__name="torch.optim:Adam").id


def test_objects_among_the_arguments_count_too(own: FakeProject) -> None:
    first = run(own, schedule__name="torch.optim.lr_scheduler:LambdaLR",
                schedule__args={"lr_lambda": {"type": "mypkg.optim:Lion", "partial": True}})  # fmt: skip
    assert first.document["code"].keys() == {"model", "schedule.args.lr_lambda"}
    assert first.document["settings"]["schedule"]["args"] == {"lr_lambda": {"_partial_": True}}


def test_settings_at_their_defaults_change_no_identity(own: FakeProject) -> None:
    first = run(own)
    at_default: dict[str, Any] = {
        "freeze": [], "optim__groups": [], "optim__args": {}, "schedule__args": {}, "schedule__interval": "step",
        "schedule__monitor": None,
    }  # fmt: skip
    assert run(own, **at_default).document == first.document
    for key, value in (("freeze", ["a.*"]), ("optim__groups", [{"match": "a.*", "lr": 1}])):
        assert run(own, **{key: value}).document != first.document


def test_why_names_the_class_before_and_after(own: FakeProject) -> None:
    run(own, optim__name="mypkg.optim:Lion")
    own.seal_all()
    run(own, optim__name="torch.optim:RAdam")
    assert "optim.name own class -> torch.optim:RAdam" in own.why("net")
    run(own, optim__name="adam")
    assert "optim.name own class -> adam" in own.why("net")
    own.workspace.write("mypkg/optim.py", LION.replace("self.lr = lr", "self.lr = 2 * lr"))
    run(own, optim__name="mypkg.optim:Lion")
    assert own.why("net") == ["code of the optim: mypkg.optim: Lion.__init__ changed"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"optim__name": "adm"}, r"defaults.optim.name=adm is not one of sgd, adam, adamw or an import path such as "
                                 r'torch.optim:RAdam; did you mean "adam"\?'),
        ({"optim__name": "mypkg.optim:Lyon"}, r'optim.name=mypkg.optim:Lyon: .*; did you mean "Lion"\?'),
        ({"schedule__name": "mypkg.optm:Lion"}, r"schedule.name=mypkg.optm:Lion: no module mypkg.optm"),
        ({"optim__args": {"lr": 1}}, r"optim.args.lr is given, .*; write optim.lr$"),
        ({"optim__groups": [{"lr": 1}]}, r"optim.groups.0.match is missing, expected a pattern of parameters' names"),
        ({"optim__groups": [{"match": "a.*"}]}, r"optim.groups.0 has no option beside match=a.\*; add one, such as lr"),
        ({"schedule__args": {"step_size": 1}}, r"schedule.args is given, but schedule.name=constant takes no further"),
        ({"schedule__interval": "epoch"}, r"schedule.interval=epoch, but schedule.name=constant steps after each"),
        ({"schedule__monitor": "val_loss"}, r"schedule.monitor=val_loss, but schedule.name=constant watches no metric"),
        ({"schedule__name": "torch.optim:Any", "schedule__warmup_steps": 2},
         r"schedule.warmup_steps=2, but schedule.name=torch.optim:Any is an import path; set it to 0"),
    ],
)  # fmt: skip
def test_settings_that_have_no_effect_are_errors(
    own: FakeProject, settings: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        run(own, **settings)


def test_a_script_makes_its_own_optimiser(own: FakeProject) -> None:
    own.workspace.write("train.py", "print(1)\n")
    own.rows[0]["model"] = "script: train.py"
    for settings, sentence in (
        (
            {"optim__name": "torch.optim:RAdam"},
            "optim.name=torch.optim:RAdam is an import path, but a training script",
        ),
        (
            {"freeze": ["a.*"]},
            "freeze is given, but a training script freezes its parameters itself",
        ),
    ):
        with pytest.raises(ConfigError, match=sentence):
            run(own, **settings)
    assert run(own, optim__name="sgd").document["settings"]["optim"]["name"] == "sgd"


def test_columns_of_the_table_set_arguments(own: FakeProject) -> None:
    own.rows[0] |= {
        "optim.name": "mypkg.optim:Lion",
        "optim.args.beta": "[0.8, 0.9]",
        "freeze": "[[backbone.*]]",
    }
    runs = {one.name: one for one in own.load().runs.values()}
    assert runs.keys() == {"net_beta=0.8", "net_beta=0.9"}
    assert runs["net_beta=0.9"].settings.optim.args == {"beta": 0.9}
    assert runs["net_beta=0.9"].settings.freeze == ["backbone.*"]
