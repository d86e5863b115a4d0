"""A config with one dataset, and a table of one run, for tests that change a part of them."""

from typing import Any

DIGITS: dict[str, Any] = {"source": {"type": "digits"}, "shards": 2}
CONFIG: dict[str, Any] = {"runs": "config/runs.tsv", "defaults": {}, "datasets": {"digits": DIGITS}}
ONE_ROW = "name\tdataset\tmodel\na\tdigits\tmlp\n"
