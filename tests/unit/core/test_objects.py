"""Objects that settings name: three spellings, their signatures and their construction."""

import functools
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.core.construct import make_values
from shardline.core.objects import NamedObject, is_import_path, read_value, without_paths
from shardline.errors import ConfigError

NETS = """
import random

class Act:
    def __init__(self, slope=0.1):
        self.slope, self.drawn = slope, random.random()

class Dense:
    made = []

    def __init__(self, width, *layers, act=None, depth=2, **rest):
        self.width, self.layers, self.act, self.depth, self.rest = width, layers, act, depth, rest
        self.drawn = random.random()

    @classmethod
    def small(cls, act=None):
        return cls(1, act=act)

class Strict:
    def __init__(self, in_size, width=64, act="relu"):
        pass

def scaled(by, value=2):
    return by * value

class Broken:
    def __init__(self):
        raise ValueError("no weights here")

TEXT = "a constant"
"""


@pytest.fixture(autouse=True)
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "objectpkg").mkdir()
    (tmp_path / "objectpkg/__init__.py").write_text("")
    (tmp_path / "objectpkg/nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("objectpkg")]:
        del sys.modules[name]


def made(value: Any) -> Any:
    return make_values({"net": value}, "model_args", 'run "a"')["net"]


# --- reading --------------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
    max_leaves=6,
)  # fmt: skip
OBJECTS = st.recursive(
    st.builds(
        NamedObject,
        path=st.sampled_from(["a.b:C", "nets:Dense", "x.y.z:K"]),
        arguments=st.dictionaries(st.sampled_from(["width", "act", "net"]), VALUES, max_size=3),
        positional=st.lists(st.integers(), max_size=2).map(tuple),
        is_partial=st.booleans(),
    ),
    lambda below: st.builds(
        NamedObject,
        path=st.just("o:Outer"),
        arguments=st.dictionaries(
            st.sampled_from(["net", "list"]), below | st.lists(below, max_size=2), max_size=2
        ),
    ),
    max_leaves=4,
)


def written(value: Any, spelling: str) -> Any:
    """Return an object as a table in a spelling."""
    if isinstance(value, list):
        return [written(item, spelling) for item in value]
    if not isinstance(value, NamedObject):
        return value
    arguments = {name: written(item, spelling) for name, item in value.arguments.items()}
    marks: dict[str, Any] = {"_args_": [*value.positional]} if value.positional else {}
    if value.is_partial:
        marks["_partial_" if spelling == "_target_" else "partial"] = True
    path = value.path if spelling == "type" else value.path.replace(":", ".")
    if spelling == "class_path":
        return {"class_path": path, "init_args": arguments, **marks}
    return {spelling: path, **arguments, **marks}


@given(OBJECTS)
def test_three_spellings_are_one_object(one: NamedObject) -> None:
    plain = [
        without_paths(read_value(written(one, spelling), "net"))
        for spelling in ("type", "_target_", "class_path")
    ]
    assert plain[0] == plain[1] == plain[2]
    assert read_value(written(one, "type"), "net") == one


@given(VALUES)
def test_other_values_stay_as_they_are(value: Any) -> None:
    assert read_value(value, "net") == value == without_paths(value)


@pytest.mark.parametrize(
    "value",
    [{"type": "gpt2"}, {"type": "torch.nn"}, {"type": "http://a:80"}, {"type": 3}, {"class_path": "a/b"},
     {"class_path": "names.txt", "n": 3}, {"partial": True}, {"type": "c:\\x"}],
)  # fmt: skip
def test_a_table_that_names_no_object_stays_a_table(value: dict[str, Any]) -> None:
    assert read_value([value], "net") == [value]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"_target_": 3}, "net._target_=3 is not an import path, expected one such as mypkg.nets:Dense; write it"),
        ({"_target_": "Dense"}, "net._target_=Dense is not an import path"),
        ({"_target_": "a.B", "type": "c:D"}, "net has both _target_ and type=c:D, expected one import path"),
        ({"class_path": "a:B", "init_args": {}, "width": 3},
         "net has width beside class_path, expected arguments in init_args; write net.init_args.width"),
        ({"class_path": "a:B", "init_args": 3}, "net.init_args=3 is not a table; write the arguments by name"),
        ({"type": "a:B", "partial": "yes"}, "net.partial=yes is not true or false"),
        ({"_target_": "a.B", "_args_": 3}, "net._args_=3 is not a list; put it in square brackets"),
        ({"_target_": "a.B", "_recursive_": False}, "net._recursive_=False, but tables that name objects"),
        ({"_target_": "a.B", "lr": "${model.lr}"}, "net.lr=${model.lr} is an interpolation of Hydra"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_named(value: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=r".*") as raised:
        read_value({"in": [value]}, "x")
    assert str(raised.value).startswith(
        "x.in.0" + sentence.removeprefix("net").replace("write net", "write x.in.0")
    )


def test_import_paths() -> None:
    assert is_import_path("a.b:C.d")
    assert not any(map(is_import_path, ["a.b", "a b:C", "a:", ":C", "a:b:c", "1a:B", None, 3]))


# --- construction ---------------------------------------------------------------------------------


def test_nested_objects_are_made_in_each_spelling() -> None:
    act = {"class_path": "objectpkg.nets.Act", "init_args": {"slope": 0.5}}
    net = made({"_target_": "objectpkg.nets.Dense", "_args_": [3, act], "act": act, "other": 1})
    assert (net.width, net.layers[0].slope, net.act.slope, net.rest) == (3, 0.5, 0.5, {"other": 1})
    assert net.layers[0] is not net.act
    many = made({"a": [{"type": "objectpkg.nets:Dense", "width": 2}, 5], "type": "text"})
    assert (many["a"][0].width, many["a"][1], many["type"]) == (2, 5, "text")


def test_a_partial_keeps_its_arguments() -> None:
    partial = made({"type": "objectpkg.nets:scaled", "partial": True, "value": 5})
    assert isinstance(partial, functools.partial)
    assert partial(2) == 10


@pytest.mark.parametrize("path", ["objectpkg.nets:Dense.small", "objectpkg.nets.Dense.small"])
def test_a_class_method_makes_an_object(path: str) -> None:
    assert made({"_target_": path}).width == 1


def test_random_draws_do_not_depend_on_the_order_of_keys() -> None:
    def drawn(keys: str) -> dict[str, float]:
        random.seed(0)
        table = {key: {"type": "objectpkg.nets:Act"} for key in keys}
        return {key: one.drawn for key, one in make_values(table, "model_args", "run").items()}

    assert drawn("abc") == drawn("cab")
    assert list(drawn("cab")) == list("cab")


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"type": "objectpkg.nets:Strict", "in_size": 2, "widths": 3},
         "model_args.net.type=objectpkg.nets:Strict takes in_size, width=64, act='relu', but not widths; did you mean "
         '"width"?'),
        ({"class_path": "objectpkg.nets.Strict", "init_args": {"width": 3}},
         "model_args.net.class_path=objectpkg.nets.Strict takes in_size, width=64, act='relu', and lacks in_size; add "
         "model_args.net.init_args.in_size"),
        ({"type": "objectpkg.nets:Strict", "_args_": [1, 2, 3, 4]},
         "model_args.net.type=objectpkg.nets:Strict takes in_size, width=64, act='relu' (too many positional "
         "arguments); change its arguments"),
        ({"type": "objectpkg.nets:scaled", "partial": True, "values": 3},
         'model_args.net.type=objectpkg.nets:scaled takes by, value=2, but not values; did you mean "value"?'),
        ({"type": "objectpkg.nets:TEXT"},
         "model_args.net.type=objectpkg.nets:TEXT is of type str, expected a class or a function; name one"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_one_sentence_with_the_parameters(
    value: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        made(value)
    assert str(raised.value) == f'run "a": {sentence}'


def test_a_failing_constructor_and_import_name_the_key_and_the_cause() -> None:
    with pytest.raises(ConfigError, match=r"(?s)model_args.net.type=objectpkg.nets:Broken cannot be made: "
                                          r"ValueError: no weights here.*objectpkg/nets.py, line"):  # fmt: skip
        made({"type": "objectpkg.nets:Broken"})
    with pytest.raises(
        ConfigError, match=r"model_args.net._target_=objectpkg.nets.Nothing does not import"
    ):
        made({"_target_": "objectpkg.nets.Nothing"})
