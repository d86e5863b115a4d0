"""Table of the rules that make results, in the order of the pipeline, with the files that each rule reads and writes.

The provenance graph uses this table. The crate, `shardline lineage` and the workflow chart of the report use the graph.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from shardline.config.layout import ResultsLayout

SOURCE, ASKED = "source", "asked"  # source of a dataset; config and run table
WEIGHTS = "weights"  # parameter of a file or folder of weights that a training begins from
OF_BASES = {"bases": "base", "state": "state"}  # what a training begins from, if another run
SHORTER = "shorter"  # parameter of the training checkpoint that a longer training continued
ACCEPT = "accept"  # not a rule: the command that accepts files of an earlier result
_ID = "[0-9a-f]{12}"
IDS = {
    "run": _ID, "dataset": _ID, "report": _ID, "evaluation": "[^/]+", "part": "[^/]+", "base": _ID,
    "step": r"\d+", "study": _ID, "trial": r"\d+|r\d+-\d+", "repeat": r"\d+", "number": r"\d+",
}  # fmt: skip
# Patterns of files inside folders that count as one node.
INSIDE = {"shards": r"shard-\d+\.safetensors", "work": ".+", "report": ".+"}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule of the workflow; `file_names` lists the kinds of files.

    Attributes:
        purpose: short description.
        about: key of its jobs in action ids.
        reads: kinds of input files by parameter.
        writes: kinds of output files by parameter.
        reads_of_script: inputs instead of `reads` if a training script evaluates its own model.
    """

    purpose: str
    about: str
    reads: Mapping[str, str]
    writes: Mapping[str, str]
    reads_of_script: Mapping[str, str] = field(default_factory=dict)


RULES = {
    "prepare_data": Rule(
        purpose="Call prepare_data of a data module once",
        about="{dataset}",
        reads={"source": SOURCE},
        writes={"prepared": "prepared"},
    ),
    "plan_splits": Rule(
        purpose="Plan splits that need a pass over all rows",
        about="{dataset}",
        reads={"source": SOURCE, "prepared": "prepared"},
        writes={"plan": "splits"},
    ),
    "build_shards": Rule(
        purpose="Write a part of a dataset's shards",
        about="{dataset}/{part}",
        reads={"source": SOURCE, "prepared": "prepared", "splits": "splits"},
        writes={"part": "part", "shards": "shards"},
    ),
    "seal_dataset": Rule(
        purpose="Merge a dataset's parts into its manifest",
        about="{dataset}",
        reads={"parts": "part", "shards": "shards", "prepared": "prepared", "splits": "splits"},
        writes={"manifest": "manifest", "provenance": "dataset"},
    ),
    "resolve_run": Rule(
        purpose="Write a run's resolved settings and its identity",
        about="{run}",
        reads={"config": ASKED, "runs": ASKED},
        writes={"spec": "spec", "identity": "identity"},
    ),
    "train": Rule(
        purpose="Train a run, from its settings to sealed weights",
        about="{run}",
        reads={"spec": "spec", "manifest": "manifest", "shards": "shards", **OF_BASES},
        writes={
            "model": "model", "metrics": "metrics", "provenance": "provenance", "checkpoints": "work",
        },
    ),
    "evaluate": Rule(
        purpose="Evaluate a sealed model on held-out data",
        about="{run}/{evaluation}",
        reads={"spec": "spec", "manifest": "manifest", "shards": "shards", "model": "model"},
        writes={"evaluation": "evaluation"},
        reads_of_script={"spec": "spec", "manifest": "manifest", "provenance": "provenance"},
    ),
    "propose": Rule(
        purpose="Propose the settings of a trial",
        about="{study}-{trial}",
        reads={},  # earlier trials, see `provenance.study_actions`
        writes={"proposal": "proposal"},
    ),
    "train_trial": Rule(
        purpose="Train a trial, or link it to a sealed run",
        about="{study}-{trial}-{repeat}",
        reads={"proposal": "proposal", "metrics": "metrics"},
        writes={"result": "trial"},
    ),
    "seal_study": Rule(
        purpose="Collect the trials of a study",
        about="{study}-{number}",
        reads={"results": "trial"},
        writes={"study": "study"},
    ),
    "render_report": Rule(
        purpose="Compare all runs on one page",
        about="{report}",
        reads={
            "runs": "spec", "metrics": "metrics", "provenances": "provenance", "evaluations": "evaluation",
            "identities": "identity", "manifests": "manifest", "datasets": "dataset", "studies": "study",
        },
        writes={"report": "report"},
    ),
}  # fmt: skip
ORDER = list(RULES)
OPTIONAL = {
    "prepare_data": "prepared",
    "plan_splits": "splits",
}  # only some datasets have these files
OF_STUDIES = ("propose", "train_trial", "seal_study")  # only some projects have sweeps
MAKERS = {kind: rule for rule, of in RULES.items() for kind in of.writes.values()}


def file_names(layout: ResultsLayout) -> dict[str, str]:
    """Return declared names by kind of file, with ids in braces; names of folders end in `/`."""
    names = layout.declared
    run, dataset = names.run("{run}"), names.result("dataset", "{dataset}")
    study = names.study("{study}")
    return {
        SOURCE: "{dataset}",
        ASKED: "{run}",
        "prepared": str(names.prepared("{dataset}")),
        "splits": str(names.split_plan("{dataset}")),
        "part": str(names.parts("{dataset}") / "{part}.json"),
        "shards": f"{names.shards('{dataset}')}/",
        "manifest": str(names.manifest("{dataset}")),
        "dataset": str(dataset / "provenance.json"),
        "spec": str(run / "run.json"),
        "identity": str(run / "identity.json"),
        "model": str(names.model("{run}")),
        "metrics": str(run / "metrics.jsonl"),
        "provenance": str(run / "provenance.json"),
        "work": f"{names.work('{run}')}/",
        "base": str(names.model("{base}")),
        "state": str(names.work("{base}") / "checkpoints" / "step-{step}" / "manifest.json"),
        "evaluation": str(names.evaluation("{run}", "{evaluation}")),
        "proposal": str(study / "{trial}" / "proposal.json"),
        "trial": str(study / "{trial}" / "result-{repeat}.json"),
        "study": str(study / "study-{number}.json"),
        "report": f"{names.result('report', '{report}')}/",
    }


def filled(template: str, ids: Mapping[str, str]) -> str:
    """Return a template with ids filled in."""
    for kind, value in ids.items():
        template = template.replace(f"{{{kind}}}", value)
    return template


def ids_in(text: str, template: str, rest: str = "") -> dict[str, str] | None:
    """Return the ids in a filled template; None if the text does not match.

    Args:
        rest: Regular expression for the text behind the template.
    """
    pattern = re.escape(template)
    for kind, form in IDS.items():
        pattern = pattern.replace(re.escape(f"{{{kind}}}"), f"(?P<{kind}>{form})")
    found = re.fullmatch(pattern + rest, text)
    return found and found.groupdict()


def nearest_first(rule: str, parameters: Iterable[str]) -> list[str]:
    """Return input parameters of a rule; parameters with files of later rules come first."""
    of = RULES.get(rule)
    kinds = {**of.reads, **of.reads_of_script} if of else {}
    places = {kind: ORDER.index(maker) for kind, maker in MAKERS.items()}
    return sorted(parameters, key=lambda parameter: -places.get(kinds.get(parameter, ""), 0))


def edges(rules: Collection[str] = RULES) -> list[tuple[str, str]]:
    """Return pairs of some rules where the second waits for the first, without implied pairs."""
    waits = {
        rule: {MAKERS[kind] for kind in of.reads.values() if MAKERS.get(kind) in rules}
        for rule, of in RULES.items()
    }
    behind = dict(waits)
    for rule in ORDER:  # all rules that a rule waits for, directly or not
        behind[rule] = waits[rule].union(*(behind[one] for one in waits[rule]))
    return [
        (first, then)
        for first in ORDER
        for then in ORDER
        if then in rules
        and first in waits[then]
        and not any(first in behind[one] for one in waits[then])
    ]
