"""Generated chains of runs, and a short model that says which of them are stale."""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from shardline.config.plans import RunPlan
from shardline.core.files import write_json

SOURCE = {"type": "synthetic", "rows_per_shard": 8, "features": 2}
COMBINED = ("average", "ensemble")


@dataclass(frozen=True)
class Node:
    """A row: a training, perhaps from another row, or a combination of rows."""

    name: str
    dataset: str
    kind: str = "init"
    of: tuple[str, ...] = ()  # names of rows
    state: str = "best"
    seed: int = 1
    lr: float = 0.1
    epochs: int = 2
    greedy: bool = False


@dataclass
class World:
    """The model: rows, versions of the data, and what is sealed. A row is stale if its key is not sealed."""

    nodes: dict[str, Node]
    data: dict[str, int]
    sealed: set[Any] = field(default_factory=set)

    def key(self, name: str) -> Any:
        """Return all that the result of a row depends on; the names of rows and datasets are not part of it."""
        node = self.nodes[name]
        bases = tuple((self.key(base), node.state) for base in node.of)
        own = (node.seed,) if node.kind in COMBINED else (node.seed, node.lr, node.epochs)
        return (self.data[node.dataset], node.kind if bases else "", bases, own, node.greedy)

    def stale(self) -> set[str]:
        return {name for name in self.nodes if self.key(name) not in self.sealed}

    def run(self) -> None:
        self.sealed |= {self.key(name) for name in self.nodes}

    def delete(self, name: str) -> None:
        self.sealed.discard(self.key(name))

    def rename(self, name: str, other: str) -> None:
        self.nodes = {
            (other if key == name else key): replace(
                node,
                name=other if key == name else key,
                of=tuple(other if base == name else base for base in node.of),
            )
            for key, node in self.nodes.items()
        }


@st.composite
def worlds(draw: st.DrawFn, least: int = 1, most: int = 7) -> World:
    nodes: dict[str, Node] = {}
    for number in range(draw(st.integers(least, most))):
        dataset = draw(st.sampled_from(["one", "two"]))
        weighted = [node for node in nodes.values() if node.kind != "ensemble"]
        alike = [node.name for node in weighted if node.dataset == dataset]
        kinds = ["", *(["init"] * 3 if weighted else []), *(COMBINED if alike else ())]
        kind, of, state, greedy = draw(st.sampled_from(kinds)), (), "best", False
        if kind == "init":
            trained = [node.name for node in weighted if node.kind == "init"]
            of = (draw(st.sampled_from([node.name for node in weighted])),)
            state = draw(st.sampled_from(["best", "last"])) if of[0] in trained else "best"
        elif kind:
            of = tuple(draw(st.lists(st.sampled_from(alike), min_size=1, max_size=3, unique=True)))
            greedy = kind == "average" and draw(st.booleans())
        name = f"r{number}"
        nodes[name] = Node(
            name, dataset, kind or "init", of, state, draw(st.sampled_from([1, 2])), greedy=greedy
        )
    order = draw(st.permutations([*nodes]))
    return World({name: nodes[name] for name in order}, {"one": 1, "two": 2})


def edit(world: World, data: st.DataObject, extra: dict[str, Any], number: int) -> str | None:
    """Edit a row, its data or its results, and return the name of the row whose results the caller must delete."""
    name = data.draw(st.sampled_from([*world.nodes]), label="row")
    node = world.nodes[name]
    edits = ["seed", "lr", "longer", "data", "delete", "rename", "uncounted"]
    match data.draw(st.sampled_from(edits), label="edit"):
        case "seed":
            world.nodes[name] = replace(node, seed=3 - node.seed)
        case "lr":
            world.nodes[name] = replace(node, lr=node.lr / 2)
        case "longer":
            world.nodes[name] = replace(node, epochs=node.epochs + 1)
        case "data":
            world.data[node.dataset] += 10
        case "delete":
            world.delete(name)
            return name
        case "rename":
            world.rename(name, f"n{number}")
            extra[f"n{number}"] = extra.pop(name, {})
        case "uncounted":  # changes no result
            extra[name] = {"data.workers": 0}
    return None


def written(world: World, extra: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of the run table."""
    found = []
    for node in world.nodes.values():
        row = {
            "name": node.name, "dataset": node.dataset, "model": "linear", "seed": node.seed, "evaluation.batch": 64,
        }  # fmt: skip
        runs = [f"run:{base}" for base in node.of]
        if node.kind in COMBINED:
            how = ", greedy: validation" if node.greedy else ""
            row[node.kind] = f"{{of: [{', '.join(runs)}]{how}}}" if how else f"[{', '.join(runs)}]"
        else:
            row |= {"optim.lr": node.lr, "trainer.max_epochs": node.epochs}
            if runs:
                row["init_from"] = runs[0] + ("@last" if node.state == "last" else "")
            row |= extra.get(node.name, {})
        found.append(row)
    return found


def datasets(world: World) -> dict[str, Any]:
    """Return the datasets of the config."""
    return {
        name: {"source": {**SOURCE, "seed": version}, "shards": 1}
        for name, version in world.data.items()
    }


def seal(run: RunPlan) -> None:
    """Leave what the jobs of a run leave, as far as a start of Snakemake looks at it."""
    write_json(run.folder / "identity.json", run.document)
    files = [run.folder / name for name in ("run.json", "metrics.jsonl", "provenance.json")]
    for path in (*files, run.model, run.evaluation):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
