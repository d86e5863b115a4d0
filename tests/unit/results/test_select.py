"""Which names a command offers in the place of one that nothing has."""

from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardline.core.errors import ConfigError
from shardline.results.select import find_run

NAMES = ["net_width=16", "net_width=32", "mlp", "big-net", "net_width=64", "net_width=128"]


def project_of(names):
    runs = {f"{index:012x}": object() for index, _ in enumerate(names)}
    named = dict(zip(names, runs.values(), strict=True))
    return SimpleNamespace(runs=runs, sweeps={}, named_runs=lambda: named)


@pytest.mark.parametrize(
    ("wanted", "offered"),
    [
        ("net", 'did you mean "net_width=16" or "net_width=32" or "net_width=64"?'),
        ("NET_width=16", 'did you mean "net_width=16"?'),
        ("-net", 'did you mean "big-net"?'),
        ("00000000000", 'did you mean "000000000000" or "000000000001" or "000000000002"?'),
        ("mpl", 'did you mean "mlp"?'),
        ("zzz", "`shardline ls` lists them"),
        ("", "`shardline ls` lists them"),
    ],
)
def test_names_that_begin_with_a_word_or_hold_it_are_offered(wanted, offered):
    with pytest.raises(ConfigError) as caught:
        find_run(project_of(NAMES), wanted)
    assert str(caught.value).endswith(f'names no run "{wanted}"; {offered}')


@given(st.text("abcXYZ=_", min_size=2, max_size=8), st.integers(1, 7))
def test_the_beginning_of_the_only_name_offers_it(name, length):
    assume(length < len(name))
    with pytest.raises(ConfigError, match="did you mean"):
        find_run(project_of([name]), name[:length])
