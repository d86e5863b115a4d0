"""Write the pages of this folder from the code that they describe: `make reference`.

The pages are committed. `tests/unit/repository/test_site.py` fails where one is not what this program writes,
so a build of the site needs neither torch nor Snakemake.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer.main
from msgspec import NODEFAULT, UnsetType, structs

import shardline_io
from shardline.cli import EXIT_CODES, app
from shardline.cli.json_schemas import file_of, page, schemas
from shardline.config.reference import reference
from shardline.core import errors, trainer_arguments, variables
from shardline.records.acceptances import Accepted
from shardline.records.attempts import Attempt
from shardline.records.base import Record
from shardline.records.certificates import ResumeCertificate
from shardline.records.datasets import DatasetProvenance, Manifest, Part, Prepared, SplitPlan
from shardline.records.environments import (
    BuiltImage,
    CondaEnvironment,
    ImageEnvironment,
    VirtualEnvironment,
)
from shardline.records.evaluations import EvaluationResult, PredictionResult
from shardline.records.failures import Failure
from shardline.records.measured import Interventions
from shardline.records.reports import Report
from shardline.records.runs import ResolvedRun
from shardline.records.sweeps import Proposal, StudyResult, TrialResult
from shardline.records.trainings import TrainingProvenance

FOLDER = Path(__file__).parent
MODULES = ("projects", "sources", "models", "transforms", "losses", "ledger", "errors")
# The file, who writes it, whether it has a seal, its type.
FILES: tuple[tuple[str, str, str, type[Record]], ...] = (
    ("results/runs/{run}/run.json", "`resolve_run`, before the training.", "yes", ResolvedRun),
    ("results/runs/{run}/provenance.json", "Rank 0, at the end of a training.", "yes", TrainingProvenance),
    ("results/runs/{run}/evaluations/{id}.json", "`evaluate`.", "yes", EvaluationResult),
    ("results/runs/{run}/predictions/{id}.json", "`write_predictions`, `shardline predict`.", "yes", PredictionResult),
    ("results/{runs,datasets}/{id}/accepted.json", "`shardline accept`.", "yes", Accepted),
    ("results/datasets/{dataset}/manifest.json", "`seal_dataset`.", "no", Manifest),
    ("results/datasets/{dataset}/provenance.json", "`seal_dataset`.", "yes", DatasetProvenance),
    ("results/reports/{report}/report.json", "`render_report`, or `shardline report`.", "no", Report),
    ("results/studies/{study}/{trial}/proposal.json", "`propose`, for a trial or promotion (`rR-P`).", "yes", Proposal),
    ("results/studies/{study}/{trial}/result-N.json", "`train_trial`, for each training.", "yes", TrialResult),
    ("results/studies/{study}/study-N.json", "`seal_study`, after N trials.", "yes", StudyResult),
    ("results/envs/{name}/environment.json", "The job that makes a conda environment.", "no", CondaEnvironment),
    ("results/envs/{name}/environment.json", "The job that makes a virtual environment.", "no", VirtualEnvironment),
    ("results/envs/{name}/environment.json", "The job that inspects the image of a script.", "no", ImageEnvironment),
    ("results/envs/image.json", "`build_image`.", "no", BuiltImage),
    ("results/certificates/resume-*.json", "`shardline drill resume`.", "yes", ResumeCertificate),
    ("STORE/datasets/{dataset}/prepared.json", "`prepare_data`, for data modules.", "yes", Prepared),
    ("STORE/datasets/{dataset}/parts/*.json", "Each job of the rule `build_shards`.", "yes", Part),
    ("STORE/datasets/{dataset}/splits.json", "`plan_splits`, if splits need a pass over all rows.", "yes", SplitPlan),
    ("STORE/work/{run}/attempts.jsonl", "The job of a training: a line for each attempt.", "each line", Attempt),
    ("STORE/work/{run}/divergence.json", "Rank 0, where a training diverged.", "no", Interventions),
    ("STORE/work/{run}/errors/rank-N.json, STORE/failures/*/*.json", "A rank or a job that fails.", "no", Failure),
)  # fmt: skip
OF_SHARDLINE = {
    "SHARDLINE_STORE": "You set it: the folder of shards and training checkpoints, in place of `store/`.",
    "SHARDLINE_LOCKS": "You set it: the folder of the locks on devices, on the machine's own disk. `off`: jobs on this "
    "machine lock no devices, and are bound to no cores.",
    "SHARDLINE_CHECK_TRANSFORMS": "You set it to 1: each sample is transformed twice, to find chance in a transform.",
    "SHARDLINE_RUN_JSON": "A training script reads it: the path of the run's `run.json`.",
    "SHARDLINE_MANIFEST": "A training script reads it: the path of the dataset's `manifest.json`.",
    "SHARDLINE_SHARDS": "A training script reads it: the folder of the shards.",
    "SHARDLINE_WORK": "A training script reads it: the folder for training checkpoints, which stays between attempts.",
    "SHARDLINE_OUTPUT": "A training script reads it: an empty folder for the results of this attempt.",
}


def pages() -> dict[str, str]:
    """Return the text of each page by its file name."""
    return {
        "config.md": config(),
        "commands.md": commands(),
        "files.md": files(),
        "json.md": page(written_from("src/shardline/cli/json_types.py")),
        "variables.md": environment_variables(),
        "trainer.md": arguments_of_trainer(),
        "python.md": python_names(),
    }


def json_schemas() -> dict[str, str]:
    """Return the JSON schema of each command's output by its file name."""
    return {
        file_of(name): json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for name, schema in schemas().items()
    }


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    head = tuple(head)
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(text: str) -> str:
    """Return a text without bars that would end a table's cell; those in code do not."""
    parts = text.strip().split("`")
    return "`".join(
        part if number % 2 else part.replace("|", "\\|") for number, part in enumerate(parts)
    )


def written_from(source: str) -> str:
    """Return the first line of a generated page."""
    return f"<!-- Written by docs/reference/generate.py from {source}: change that, then `make reference`. -->"


def linked(text: str) -> str:
    """Return a text of the code with links in place of the names of pages."""

    def link(found: re.Match[str]) -> str:
        page = found["page"]
        path = page.removeprefix("reference/") if page.startswith("reference/") else f"../{page}"
        return f"[{page.rpartition('/')[2].replace('-', ' ')}]({path}.md)"

    text = re.sub(
        r"\[docs/[\w/-]+\.md\]\((?:\.\./)*docs/(?P<page>[\w/-]+)\.md\)"
        r"|(?:Shardline's )?`?(?<!\w)docs/(?P<other>[\w/-]+)\.md`?",
        lambda found: f"docs/{found['page'] or found['other']}.md",
        text,
    )
    return re.sub(r"docs/(?P<page>[\w/-]+)\.md", link, text)


def config() -> str:
    """Return the page of all keys: that of config/README.md, where each key has an anchor."""
    text = reference().partition("# Config\n")[2]
    seen = set()
    lines = []
    for line in text.splitlines():
        found = re.match(r"\| `([\w.]+)` \| (?:.* \| ){3}", line)
        if found and found[1] not in seen:
            seen.add(found[1])
            line = line.replace(f"`{found[1]}`", f"`{found[1]}`{{ #{found[1]} }}", 1)
        lines.append(line)
    head = [
        "# Keys of `config.yaml` and `runs.tsv`",
        "",
        written_from("src/shardline/config/settings/"),
        "",
        "This page lists every key of `config/config.yaml` and every column of `config/runs.tsv`.",
    ]
    return "\n".join([*head, linked("\n".join(lines))]) + "\n"


def commands() -> str:
    """Return the page of the command line."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    found = dict(named_commands(group))
    lines = [
        "# Commands",
        "",
        written_from("src/shardline/cli/"),
        "",
        "This page lists every command of `shardline`, with its arguments, options and exit codes.",
        "Call `shardline` in the project's folder. `shardline COMMAND --help` prints the same text.",
        "",
        table(
            ("command", "what it does"),
            ((f"[`{name}`](#{place(name)})", short_help(one)) for name, one in found.items()),
        ),
        "",
        "## Options of `shardline` { #shardline }",
        "",
        "```",
        usage("shardline", group, "COMMAND [ARGS]..."),
        "```",
        "",
        help_text(group),
        "",
        options(group),
    ]
    for name, one in found.items():
        lines += [
            "",
            f"## `{name}` {{ #{place(name)} }}",
            "",
            "```",
            usage(f"shardline {name}", one),
            "```",
        ]
        lines += ["", help_text(one), "", options(one)]
    lines += [
        "",
        "## Exit codes",
        "",
        "Of `shardline`:",
        "",
        table(("code", "meaning"), ((str(code), f"{text}") for code, text in EXIT_CODES.items())),
        "",
        "Of a job of `snakemake`, and of a rank, in its log:",
        "",
        table(("code", "meaning"), exit_codes()),
        "",
        "`snakemake` itself exits with 0 if all jobs succeeded, else with 1.",
    ]
    return "\n".join(lines) + "\n"


def named_commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each command with its name; that of a command of a group has two words."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from named_commands(one, f"{before}{name} ")
        else:
            yield f"{before}{name}", one


def place(name: str) -> str:
    """Return the anchor of a command's heading."""
    return name.replace(" ", "-")


def exit_codes() -> Iterator[tuple[str, str]]:
    """Yield the exit codes of jobs and ranks with their meaning."""
    kinds = (
        errors.ConfigError,
        errors.DataError,
        errors.LaunchError,
        errors.Diverged,
        errors.Stopped,
    )
    found = {kind.exit_code: f"`{kind.__name__}`: {first_sentence(kind)}" for kind in kinds}
    found[1] = "Any other error; a retry may help."
    found[errors.CODE_ERROR] = (
        "Your model, or another class of yours, raised an error that a retry would raise again."
    )
    for code, meaning in sorted(found.items()):
        yield str(code), meaning
    yield "128 + N", "Signal N ended the process, such as 137: SIGKILL."


def first_sentence(documented: object) -> str:
    """Return the first line of a docstring."""
    return str(documented.__doc__).strip().splitlines()[0]


def short_help(command: Any) -> str:
    """Return the first sentence of a command's help."""
    return " ".join(command.help.split("\n\n")[0].split())


def help_text(command: Any) -> str:
    """Return a command's help in paragraphs, each on one line."""

    def paragraph(text: str) -> str:
        row = r"(?:\[\w+\])?([\w-]+)(?:\[/\w+\])?  +(.+)"  # of a table of two columns
        found = [re.fullmatch(row, line.strip()) for line in text.splitlines()]
        lines = [f"- `{one[1]}`: {one[2]}" for one in found if one]
        return "\n".join(lines) if len(lines) == len(found) else " ".join(text.split())

    return "\n\n".join(map(paragraph, command.help.strip().split("\n\n")))


def usage(name: str, command: Any, arguments: str = "") -> str:
    """Return the line that shows how to call a command."""
    words = [name, "[OPTIONS]"]
    for one in shown(command):
        if is_argument(one):
            word = one.metavar or one.name.upper()
            word = word if one.required else f"[{word}]"
            words.append(word if one.nargs == 1 or word.endswith("...") else f"{word}...")
    return " ".join([*words, *([arguments] if arguments else [])])


def is_argument(parameter: Any) -> bool:
    """Return whether a parameter has no name on the command line."""
    return bool(parameter.param_type_name == "argument")


def shown(command: Any) -> list[Any]:
    """Return the parameters that help shows."""
    return [one for one in command.params if not getattr(one, "hidden", False)]


def options(command: Any) -> str:
    """Return the table of a command's arguments and options."""
    rows = []
    for one in shown(command):
        if is_argument(one):
            names = f"`{one.metavar or one.name.upper()}`"
        else:
            names = ", ".join(f"`{name}`" for name in [*one.opts, *one.secondary_opts])
            if value := value_of(one):
                names += f" `{value}`"
        text = one.help or ""
        if one.required and not is_argument(one):
            text += " Required."
        elif one.default not in (None, False, "", ()) and not callable(one.default):
            text += f" Default: `{getattr(one.default, 'value', one.default)}`."
        if getattr(one, "multiple", False):
            text += " May be given several times."
        rows.append((names, cell(text)))
    rows.append(("`--help`, `-h`", "Show the help and exit."))
    return table(("argument or option", "meaning"), rows)


def value_of(option: Any) -> str:
    """Return what an option's value is called; nothing for a flag."""
    if option.is_flag:
        return ""
    kind = option.type_descriptor.annotation
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return str(option.metavar or type_text(kind).upper())


def files() -> str:
    """Return the page of files and their fields."""
    lines = [
        "# Files",
        "",
        written_from("src/shardline/records/"),
        "",
        "This page lists the JSON files of results and store whose form is fixed, with their fields.",
        "`STORE` is `store/` or the folder that you have named.",
        "",
        "A *sealed* file also has the field `sha256`: the digest of the canonical JSON of the rest.",
        "`shardline verify` checks the digest.",
        "A field that *may be absent* is left out of files to which it does not apply.",
        "",
        table(
            ("file", "rule or command that writes it", "sealed", "fields"),
            (
                (" ".join(f"`{one}`" for one in paths.split(", ")), who, has_seal, link_to(kind))
                for paths, who, has_seal, kind in FILES
            ),
        ),
        "",
        "A run's folder also contains `identity.json` (the [identity document](../concepts/identity.md)),",
        "`model.safetensors`, `metrics.jsonl` (a line for each logged step, and for each",
        "[image, table or text](../how-to/write-a-model.md#log-numbers-images-tables-and-texts)) and",
        "`predictions/{id}.parquet`.",
    ]  # fmt: skip
    waiting: list[type[Record]] = [kind for *_, kind in FILES]
    done: list[type[Record]] = []
    while waiting:
        kind = waiting.pop(0)
        if kind in done:
            continue
        done.append(kind)
        lines += [
            "",
            f"## {kind.__name__} {{ #{anchor(kind)} }}",
            "",
            summary(kind),
            "",
            fields(kind),
        ]
        waiting[:0] = [one for one in records_in(kind) if one not in done and one not in waiting]
    return "\n".join(lines) + "\n"


def anchor(kind: type[Record]) -> str:
    """Return the anchor of a record's section."""
    return kind.__name__.lower()


def link_to(kind: type[Record]) -> str:
    """Return a link to a record's section."""
    return f"[{kind.__name__}](#{anchor(kind)})"


def summary(kind: type[Record]) -> str:
    """Return the text of a record's docstring before its fields."""
    text = str(kind.__doc__).partition("\n    Attributes:")[0]
    paths = [path for path, *_, one in FILES if one is kind]
    return "\n\n".join([" ".join(text.split()), *(f"File: `{path}`" for path in paths)])


def meanings(kind: type[Record]) -> dict[str, str]:
    """Return what docstrings have about each field, also of the bases."""
    found = {}
    for base in reversed(kind.__mro__):
        text = base.__dict__.get("__doc__") or ""
        part = text.partition("Attributes:\n")[2]
        entries = re.split(r"^ {8}(?=\S)", part, flags=re.MULTILINE)[1:]
        for entry in entries:
            names, _, meaning = entry.partition(":")
            for name in names.split(", "):
                found[name.strip()] = " ".join(meaning.split())
    return found


def fields(kind: type[Record]) -> str:
    """Return the table of a record's fields."""
    texts = meanings(kind)
    rows = []
    for one in structs.fields(kind):
        text = texts.get(one.name, "")
        text = f"{text[:1].upper()}{text[1:].rstrip('.')}." if text else ""
        if UnsetType in get_args(one.type):
            text += " May be absent."
        elif one.default is NODEFAULT and one.default_factory is NODEFAULT:
            text += " Required."
        rows.append((f"`{one.encode_name}`", type_text(one.type), cell(text)))
    return table(("field", "type", "meaning"), rows)


def records_in(kind: type[Record]) -> list[type[Record]]:
    """Return the records that a record's fields contain."""

    def within(found: Any) -> Iterator[type[Record]]:
        if isinstance(found, type) and issubclass(found, Record):
            yield found
        for one in get_args(found):
            yield from within(one)

    found = (one for field in structs.fields(kind) for one in within(field.type))
    return [one for one in dict.fromkeys(found) if not one.__name__.startswith("_")]


def type_text(kind: Any) -> str:
    """Return a field's type in words."""
    words = {
        str: "text",
        int: "integer",
        float: "number",
        bool: "true, false",
        Any: "any",
        type(None): "null",
        dict: "object",
    }
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in words:
        return words[kind]
    if origin is Annotated:
        return type_text(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin in (Union, UnionType):
        return " or ".join(type_text(one) for one in arguments if one is not UnsetType)
    if origin in (list, tuple):
        each = ", ".join(dict.fromkeys(type_text(one) for one in arguments if one is not Ellipsis))
        return "list" if each == "any" else f"list of {each}"
    if origin is dict:
        value = type_text(arguments[1])
        return "object" if value == "any" else f"object of {value}"
    if isinstance(kind, type) and issubclass(kind, Record):
        return link_to(kind)
    raise TypeError(f"no words for {kind}: add them here")


def environment_variables() -> str:
    """Return the page of environment variables."""

    def rows(kind: str) -> Iterator[tuple[str, str]]:
        for row in variables.TABLE:
            if row.kind == kind:
                yield " ".join(f"`{name}`" for name in sorted(row.names)), row.reason

    text = {
        "removed": (
            "Removed",
            "Shardline removes these variables from the environment of each job and each rank, and prints their names. "
            "To keep a variable on your machines, name it in `runtime.variables` of the profile. "
            "Shardline then records the variable. `PL_*` and `LT_*` are rejected there as well.",
        ),
        "set": (
            "Set",
            "Shardline sets these variables before Python starts. "
            "`runtime.variables` overrides all but those of Python.",
        ),
        "recorded": (
            "Recorded",
            "Shardline passes these variables on and records them in `provenance.json` under `action.variables`. "
            "`shardline diff RUN RUN` shows the ones that differ. Nothing becomes stale.",
        ),
        "harmless": (
            "Harmless",
            "These variables change no number. Shardline passes them on and records none of them.",
        ),
    }  # fmt: skip
    lines = [
        "# Environment variables",
        "",
        written_from("src/shardline/core/variables.py"),
        "",
        "This page lists Shardline's own environment variables, and those of other software that change numbers.",
        "The same run gives the same model in every shell.",
        "",
        "```console",
        "$ PL_TRAINER_LIMIT_TRAIN_BATCHES=3 snakemake --profile profiles/local",
        variables.ignored(["PL_TRAINER_LIMIT_TRAIN_BATCHES"]),
        "```",
        "",
        "## Of Shardline",
        "",
        table(
            ("variable", "meaning"),
            ((f"`{name}`", meaning) for name, meaning in OF_SHARDLINE.items()),
        ),
    ]
    for kind, (title, intro) in text.items():
        lines += ["", f"## {title}", "", intro, "", table(("variables", "why"), rows(kind))]
    return "\n".join(lines) + "\n"


def arguments_of_trainer() -> str:
    """Return the page of the arguments of Lightning's Trainer."""
    lines = [
        "# Arguments of the Trainer",
        "",
        written_from("src/shardline/core/trainer_arguments.py"),
        "",
        "This page lists every argument of Lightning's `Trainer`, with its setting or the reason why it has none.",
        "Steps are optimiser steps, where Lightning counts the batches of an accumulation.",
        "[Set optimiser, Trainer and callbacks](../how-to/set-the-trainer.md#set-the-trainers-arguments) has an "
        "example.",
        "",
        table(
            ("argument", "setting"),
            ((f"`{name}`", f"`{setting}`") for name, setting in trainer_arguments.SETTINGS.items()),
        ),
        "",
        "## Without a setting",
        "",
        table(
            ("argument", "why"),
            ((f"`{name}`", reason) for name, reason in trainer_arguments.REASONS.items()),
        ),
    ]
    return "\n".join(lines) + "\n"


def python_names() -> str:
    """Return the page of public Python names, which mkdocstrings fills from docstrings."""
    lines = [
        "# Python",
        "",
        written_from("`__all__` of the public modules"),
        "",
        "This page lists every Python name that your code may import. Names and arguments are stable:",
        "a release that changes a name lists the change in the changelog.",
        "All other modules of `shardline` are internal.",
    ]  # fmt: skip
    for name in MODULES:
        module = import_module(f"shardline.{name}")
        lines += [
            "",
            f"## shardline.{name} {{ #shardline.{name} }}",
            "",
            str(module.__doc__).partition(":")[0].strip() + ".",
        ]
        for one in module.__all__:
            value = getattr(module, one)
            if hasattr(value, "__module__"):
                lines += ["", f"::: shardline.{name}.{one}"]
            else:  # a constant
                lines += [
                    "",
                    f"### `shardline.{name}.{one}` {{ #shardline.{name}.{one} }}",
                    "",
                    f"`{value!r}`",
                ]
    lines += [
        "",
        "## shardline_io",
        "",
        "Use these names in a training program of any framework.",
        "The package needs the standard library and NumPy alone.",
    ]
    for one in shardline_io.__all__:
        # which looks its names up at their first use, so that mkdocstrings cannot
        home = getattr(shardline_io, one).__module__
        lines += ["", f"::: {home}.{one}", "    options:", f'      heading: "shardline_io.{one}"']
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write each page."""
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    (FOLDER / "schemas").mkdir(exist_ok=True)
    for name, text in json_schemas().items():
        (FOLDER / "schemas" / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
