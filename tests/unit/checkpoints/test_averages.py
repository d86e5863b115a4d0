"""Averages of sealed weights are those of NumPy, and a greedy soup takes what does not make it worse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from shardline.checkpoints.averages import check_alike, choose, mean_of
from shardline.errors import ConfigError, DataError

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool]
finite = st.floats(-1e4, 1e4, width=16)


@st.composite
def members(draw):
    """Return the weights of some members, which differ in values only."""
    kinds = draw(
        st.dictionaries(
            st.sampled_from("abcdef"),
            st.tuples(st.sampled_from(TYPES), st.sampled_from([(), (3,), (2, 2), (0,)])),
            min_size=1,
        )
    )

    def weights():
        return {
            name: torch.tensor(
                draw(st.lists(finite, min_size=math.prod(shape), max_size=math.prod(shape)))
            )
            .reshape(shape)
            .to(kind)
            for name, (kind, shape) in kinds.items()
        }

    return [weights() for _ in range(draw(st.integers(1, 4)))]


@settings(max_examples=60, deadline=None)
@given(members())
def test_average_is_the_mean_in_64_bits(tmp_path_factory, found):
    folder = tmp_path_factory.mktemp("members")
    files = {}
    for number, weights in enumerate(found):
        files[f"run {number}"] = folder / f"{number}.safetensors"
        save_file(weights, files[f"run {number}"])
    check_alike(files, "run")
    average = mean_of([*files.values()])
    assert average.keys() == found[0].keys()
    for name, value in average.items():
        first = found[0][name]
        assert value.dtype == first.dtype
        assert value.shape == first.shape
        if first.is_floating_point() and len(found) > 1:
            stacked = np.stack([one[name].double().numpy() for one in found])
            expected = torch.from_numpy(np.asarray(stacked.sum(axis=0) / len(found)))
            # of several types that round the same 64 bits, torch's own rounding is the standard
            torch.testing.assert_close(value, expected.to(first.dtype), rtol=1e-12, atol=1e-12)
        else:
            assert torch.equal(value, first)


def test_one_error_lists_all_that_differs(tmp_path):
    save_file({"a": torch.ones(2), "b": torch.ones(1), "c": torch.ones(1)}, tmp_path / "one")
    save_file(
        {"a": torch.ones(3), "c": torch.ones(1).double(), "d": torch.ones(1)}, tmp_path / "two"
    )
    files = {"one (1)": tmp_path / "one", "two (2)": tmp_path / "two"}
    with pytest.raises(ConfigError) as error:
        check_alike(files, 'run "mean"')
    assert str(error.value) == (
        'run "mean": a is F32[3] in two (2), and F32[2] in one (1); b is missing in two (2), and F32[1] in one (1); '
        "c is F64[1] in two (2), and F32[1] in one (1); d is F32[1] in two (2), and missing in one (1); expected "
        "weights of the same names, shapes and types; name runs of one model with the same model_args"
    )


def test_a_file_that_is_not_readable_is_named(tmp_path):
    (tmp_path / "torn").write_bytes(b"{")
    with pytest.raises(DataError, match=r"torn cannot be read as weights"):
        check_alike({"torn": tmp_path / "torn"}, "run")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, math.nan]), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.sampled_from(["min", "max"]),
)
def test_greedy_soup_is_the_recipe(scores, random, mode):
    table = {}

    def score_of(chosen):
        assert [*chosen] == sorted(chosen)
        return table.setdefault(tuple(chosen), random.choice([0.0, 1.0, 2.0, math.nan]))

    soup = choose(scores, score_of, mode)

    def is_worse(score, other):
        if math.isnan(score) or math.isnan(other):
            return math.isnan(score) and not math.isnan(other)
        return score < other if mode == "max" else score > other

    # the recipe, told from the end: each member in the soup was tried with the better ones before it
    order = []
    for at in range(len(scores)):
        place = next(
            (i for i, o in enumerate(order) if is_worse(scores[o], scores[at])), len(order)
        )
        order.insert(place, at)
    taken, best = [order[0]], scores[order[0]]
    for at in order[1:]:
        score = table[tuple(sorted([*taken, at]))]
        if not is_worse(score, best):
            taken, best = sorted([*taken, at]), score
    assert soup.chosen == tuple(taken)
    assert soup.score == best or (math.isnan(soup.score) and math.isnan(best))
    assert len(soup.tried) == len(scores)
    assert not is_worse(soup.score, scores[order[0]])
