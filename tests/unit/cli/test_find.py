"""The command `find`: a curve or a table, and a line for the config."""

import json
from types import SimpleNamespace

import pytest

from shardline.core.errors import ConfigError, ShardlineError
from shardline.results import find as searches
from shardline.training.find import rate_of
from tests.support.command_line import shardline


def test_a_command_prints_the_curve_and_a_line_to_paste(fake, monkeypatch):
    def remake(targets, **_):
        (path,) = targets
        path.parent.mkdir(parents=True)
        losses = [1.0] * 20 + [0.5] * 20
        answer = {
            "lr": {"rates": [rate_of(n) for n in range(40)], "losses": losses, "suggested": 0.01, "key": "optim.lr"},
            "batch": {"tried": [{"batch": 64, "peak_bytes": 10**9, "limit_bytes": 8 * 10**9, "rows": 640},
                                {"batch": 512, "reason": "out of memory"}], "largest": 64, "bound": "memory"},
        }  # fmt: skip
        path.write_text(json.dumps(answer[path.stem.rpartition("-")[2]]))
        return True

    fake.load()
    monkeypatch.setattr(searches, "remake", remake)
    monkeypatch.setenv("COLUMNS", "40")
    for what, lines in (
        ("lr", ["^", "optim.lr: 0.01"]),
        ("batch", ["512", "fit", "global_batch: 64"]),
    ):
        done = shardline("find", what, "net")
        assert done.exit_code == 0, done.output
        printed = done.stdout
        for line in lines:
            assert line in printed
        assert max(map(len, printed.splitlines())) <= 40
        assert json.loads(shardline("find", what, "net", "--json").stdout)
    assert not (fake.workspace.path / "results/found").exists()
    monkeypatch.setattr(searches, "remake", lambda *_, **__: False)
    with pytest.raises(ShardlineError, match="recorded in logs/find_setting/"):
        searches.find_rates(fake.run("net"), config="c", profile="p")
    script = SimpleNamespace(name="s", id="0" * 12, model_class="script: train.py")
    with pytest.raises(ConfigError, match="is a training script, whose steps"):
        searches.find_batch(script, config="c", profile="p")
