"""What stands in an identity document of a shipped class, a user's, an installed one, a script."""

from tests.support.fake_project import FakeProject


def test_a_shipped_class_stands_by_name_however_it_is_written(fake: FakeProject) -> None:
    short = fake.run("flat")
    fake.rows[1]["model"] = "shardline.training.models.linear:Linear"
    long = fake.run("flat")
    assert long.document == short.document
    assert long.evaluation_document == short.evaluation_document
    assert short.document["model"] == "linear"
    assert short.document["versions"] == {"linear": 1, "training": 1}
    assert short.evaluation_document["versions"] == {"evaluation": 1, "linear": 1}
    assert short.document["code"] == short.definitions == {}
    assert short.dataset.document["versions"] == {"data": 1, "synthetic": 1}


def test_a_users_class_stands_by_its_code(fake: FakeProject) -> None:
    run = fake.run("net")
    assert "model" not in run.document
    assert run.document["code"].keys() == run.definitions.keys() == {"model"}
    assert run.evaluation_document["code"] == run.document["code"]
    assert run.document["versions"] == {"training": 1}
    assert "mypkg.models:Net.forward" in run.definitions["model"]["definitions"]
    dataset = run.dataset
    assert "type" not in dataset.document["settings"]["source"]
    assert dataset.document["code"].keys() == dataset.definitions.keys() == {"source"}


def test_two_classes_of_one_module_are_two_models(fake: FakeProject) -> None:
    fake.workspace.write("mypkg/models.py", "class Net:\n    pass\n\n\nclass Other:\n    x = 1\n")
    first = fake.run("net")
    fake.rows[0]["model"] = "mypkg.models:Other"
    assert fake.run("net").document["code"] != first.document["code"]


def test_a_class_of_an_installed_package_stands_by_its_path_and_its_package(
    fake: FakeProject,
) -> None:
    path = "pytorch_lightning.demos.boring_classes:BoringModel"
    fake.workspace.write(
        "my.lock",
        "pytorch-lightning==2.6.0\n    # via shardline\nrich==14.0\n    # via shardline\n",
    )
    fake.rows[1]["model"] = path
    run = fake.run("flat")
    assert (run.document["model"], run.document["code"]) == (path, {})
    packages = run.document["environment"]["packages"]
    assert packages["pytorch-lightning"] == "2.6.0"
    assert "rich" not in packages


def test_only_packages_that_decide_a_value_and_those_of_the_users_code_count(
    fake: FakeProject,
) -> None:
    names = ("blake3", "einops", "filelock", "numpy", "pyarrow", "torch")
    fake.workspace.write("my.lock", "".join(f"{name}==1\n    # via shardline\n" for name in names))
    text = "import einops\n\n\nclass Net:\n    f = einops.rearrange\n"
    fake.workspace.write("mypkg/models.py", text)
    found = {
        run.name: set(run.document["environment"]["packages"]) for run in fake.load().runs.values()
    }
    assert found["net"] & set(names) == {"einops", "numpy", "torch"}
    assert found["flat"] & set(names) == {"numpy", "torch"}


def test_the_shards_that_one_job_writes_are_no_part_of_a_dataset(fake: FakeProject) -> None:
    before = fake.run("flat").dataset.document
    fake.config["datasets"]["table"]["shards_per_job"] = 1
    assert fake.run("flat").dataset.document == before
    assert before["settings"].keys() == {"source", "shards", "splits"}
