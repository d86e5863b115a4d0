"""What evaluates a run, in identities: a `test_step`, metrics and the headline; what is refused."""

import pytest

from shardline.errors import ConfigError
from tests.support.fake_project import FakeProject

STEP = "\n    def {step}(self, batch, batch_idx):\n        pass\n"
METRICS = "class Own:\n    pass\n"
NAMED = {"type": "torchmetrics.classification:MulticlassF1Score", "num_classes": 3}


@pytest.fixture
def project(fake: FakeProject) -> FakeProject:
    fake.workspace.write("mypkg/metrics.py", METRICS)
    names = ("scipy", "torch", "torchmetrics")
    lock = "".join(f"{name}==1\n    # via shardline\n" for name in names)
    fake.workspace.write("my.lock", lock)
    return fake


def evaluated_by(project: FakeProject, **evaluation: object) -> tuple[str, dict]:
    project.config["defaults"]["evaluation"] = evaluation
    run = project.run("net")
    return run.id, run.evaluation_document


def model(project: FakeProject, step: str) -> None:
    text = (project.workspace.path / "mypkg/models.py").read_text()
    project.workspace.write("mypkg/models.py", text + STEP.format(step=step))


def test_a_test_step_is_named_in_the_evaluation_alone(project: FakeProject) -> None:
    _, before = evaluated_by(project)
    model(project, "validation_step")
    assert evaluated_by(project)[1].keys() == before.keys()
    model(project, "test_step")
    run = project.run("net")
    assert run.evaluation_document["measured_by"] == "test_step"
    assert "measured_by" not in run.document
    assert run.evaluation_document["ranks"] == 1
    project.rows[0] |= {"devices": 2, "nodes": 2}
    assert project.run("net").evaluation_document["ranks"] == 4
    project.rows[0]["elastic"] = True
    assert project.run("net").evaluation_document["ranks"] == 1


def test_samples_that_a_model_describes_count_in_the_evaluation_alone(project: FakeProject) -> None:
    model(project, "test_step")
    assert "samples" not in project.run("net").evaluation_document["versions"]
    model(project, "describe_sample")
    described = project.run("net")
    assert described.evaluation_document["versions"]["samples"] == 1
    assert "samples" not in described.document["versions"]
    for name, has in (("gpt", True), ("unet", True), ("resnet", False)):
        project.rows[0]["model"] = name
        assert ("samples" in project.run("net").evaluation_document["versions"]) is has


def test_gpt_takes_its_vocabulary_from_the_tokenizer_as_if_it_were_written(
    project: FakeProject,
) -> None:
    project.workspace.write(
        "data/t.json", '{"model": {"vocab": {"a": 0, "b": 6}}, "added_tokens": []}'
    )
    source = {"type": "text", "files": ["data/a.csv"], "tokenizer": "data/t.json"}
    project.config["datasets"][project.rows[0]["dataset"]]["source"] = source
    project.rows[0]["model"] = "gpt"
    told = project.run("net")
    assert told.settings.model_args == {"vocab": 7}
    project.rows[0]["model_args.vocab"] = 7
    assert project.run("net").document == told.document
    project.rows[0] |= {"model_args.vocab": 9, "model_args.width": 8}
    assert project.run("net").settings.model_args == {"vocab": 9, "width": 8}
    for key in ("model_args.vocab", "model_args.width"):
        del project.rows[0][key]
    project.rows[0]["model_args.column"] = "other"
    assert project.run("net").settings.model_args == {"column": "other"}
    source["tokenizer"] = "bytes"
    del project.rows[0]["model_args.column"]
    assert project.run("net").settings.model_args == {}


@pytest.mark.parametrize("head", ["CausalLM", "MaskedLM", "TokenClassification"])
def test_a_model_of_transformers_takes_its_vocabulary_from_the_tokenizer(
    project: FakeProject, head: str
) -> None:
    project.workspace.write(
        "data/t.json", '{"model": {"vocab": {"a": 0, "b": 6}}, "added_tokens": []}'
    )
    source = {"type": "text", "files": ["data/a.csv"], "tokenizer": "data/t.json"}
    project.config["datasets"][project.rows[0]["dataset"]]["source"] = source
    project.rows[0] |= {"model": f"hf:AutoModelFor{head}", "model_args.config.model_type": "bert"}
    told = project.run("net")
    assert told.settings.model_args == {"config": {"model_type": "bert", "vocab_size": 7}}
    project.rows[0]["model_args.config.vocab_size"] = 7
    assert project.run("net").document == told.document
    project.rows[0]["model_args.config.vocab_size"] = 9
    assert project.run("net").settings.model_args["config"]["vocab_size"] == 9
    source["tokenizer"] = "bytes"
    del project.rows[0]["model_args.config.vocab_size"]
    assert project.run("net").settings.model_args == {"config": {"model_type": "bert"}}


def test_metrics_and_headline_count_in_the_evaluation_with_their_packages(
    project: FakeProject,
) -> None:
    training, before = evaluated_by(project)
    assert not before["settings"]["metrics"]
    packages = before["environment"]["packages"].keys()
    assert packages.isdisjoint({"scipy", "torchmetrics"})
    same, after = evaluated_by(project, metrics=[NAMED, "CohenKappa", "mypkg.metrics:Own"])
    assert same == training
    assert after["settings"]["metrics"] == [NAMED, "CohenKappa", "mypkg.metrics:Own"]
    assert after["environment"]["packages"].keys() - packages == {"torchmetrics"}
    assert after["code"].keys() == {"model", "metric 3"}
    project.workspace.write("mypkg/metrics.py", METRICS.replace("pass", "x = 1"))
    assert evaluated_by(project, metrics=after["settings"]["metrics"])[1]["code"] != after["code"]
    same, wanted = evaluated_by(project, headline={"metric": "loss", "mode": "min"})
    assert same == training
    assert wanted["environment"]["packages"].keys() - packages == {"scipy"}


@pytest.mark.parametrize(
    ("evaluation", "message"),
    [
        ({"metrics": [{"num_classes": 3}]}, r"evaluation.metrics.0.type is missing, expected a class"),
        ({"metrics": ["CohenKappa", "mypkg.metrics:Mine"]}, "metrics.1.type=mypkg.metrics:Mine: .* has no Mine"),
        ({"metrics": ["F1Score", "F1Score"]}, "evaluation.metrics.1 is called F1Score, like another metric"),
        ({"headline": {"metric": "f1"}}, "evaluation.headline.mode is missing"),
        ({"headline": {"metric": "f1", "mode": "up"}}, "mode.*min.*max"),
    ],
)  # fmt: skip
def test_what_is_no_metric_is_a_sentence(
    project: FakeProject, evaluation: dict, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluated_by(project, **evaluation)


@pytest.mark.parametrize(
    ("step", "is_refused"), [("forward", True), ("test_step", False), ("validation_step", False)]
)
def test_a_run_on_text_that_nothing_would_evaluate_is_refused(
    project: FakeProject, step: str, is_refused: bool
) -> None:
    project.config["datasets"]["rows"]["source"] = {"type": "text", "files": ["data/*.csv"]}
    model(project, step)
    if not is_refused:
        evaluated_by(project)
        return
    with pytest.raises(
        ConfigError, match="neither a test_step nor a validation_step.*dataset rows"
    ):
        evaluated_by(project)
