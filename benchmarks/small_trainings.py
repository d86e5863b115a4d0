"""What many small trainings cost: a loop of plain Lightning, and Shardline with ranks that are forked or started.

Each training is a small net on scikit-learn's digits, about half a second of steps on one core. All sides use all
cores that they can: the loop has one process, Snakemake runs as many jobs as there are cores. Two more sides can be
asked for: `scripts` starts a program of plain Lightning for each training, as many at a time as there are cores, and
`empty` has Snakemake run three scripts that do nothing for each training.
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LRS, SIZES = (0.001, 0.003, 0.01, 0.03), (32, 64, 128)
CONFIG = """\
runs: config/runs.tsv
defaults:
  accelerator: cpu
  devices: 1
  global_batch: 32
  early_stopping: {patience: 0}
  trainer: {max_epochs: EPOCHS}
runtime: {warm_ranks: WARM, threads_per_rank: 1, oversubscribe: true}
datasets:
  digits: {source: {type: digits}, shards: 4}
"""
# the nets, sizes and rates of the runs
LOOP = (
    f"SIZES, LRS = {SIZES}, {LRS}"
    + """
import itertools, logging, sys, warnings
import pytorch_lightning as pl, torch
from sklearn.datasets import load_digits

warnings.filterwarnings("ignore")
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
torch.set_num_threads(1)
features, labels = load_digits(return_X_y=True)
features = torch.tensor(features, dtype=torch.float32)
features, labels = (features - features.mean()) / features.std(), torch.tensor(labels)
kept = int(0.8 * len(features))
train = torch.utils.data.TensorDataset(features[:kept], labels[:kept])
held = torch.utils.data.TensorDataset(features[kept:], labels[kept:])

class Net(pl.LightningModule):
    def __init__(self, lr, size):
        super().__init__()
        self.lr = lr
        def hidden(width):
            return torch.nn.Sequential(torch.nn.Linear(width, size), torch.nn.ReLU(), torch.nn.Dropout(0.1))
        self.net = torch.nn.Sequential(hidden(64), hidden(size), torch.nn.Linear(size, 10))
    def training_step(self, batch, _):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, _):
        self.log("val_loss", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.lr)

RUNS = itertools.product(range(int(sys.argv[1])), SIZES, LRS)
for number, size, lr in itertools.islice(RUNS, int(sys.argv[1])):
    pl.seed_everything(number, verbose=False)
    loaders = torch.utils.data.DataLoader(train, 32, shuffle=True), torch.utils.data.DataLoader(held, 1024)
    pl.Trainer(max_epochs=int(sys.argv[2]), accelerator="cpu", devices=1, enable_progress_bar=False,
               enable_model_summary=False, default_root_dir="loop").fit(Net(lr, size), *loaders)
"""
)
EMPTY = """
rule all:
    input: expand("done/{job}", job=range(JOBS))
rule empty:
    output: "done/{job}"
    script: "empty.py"
"""


def write_project(folder: Path, trainings: int, epochs: int, *, is_warm: bool) -> None:
    """Write a project with this many runs."""
    (folder / "config").mkdir(parents=True)
    config = CONFIG.replace("EPOCHS", str(epochs)).replace("WARM", str(is_warm).lower())
    (folder / "config/config.yaml").write_text(config)
    grid = itertools.islice(itertools.product(range(trainings), SIZES, LRS), trainings)
    rows = ["name\tdataset\tmodel\toptim.lr\tmodel_args.hidden\tseed"]
    rows += [
        f"run{i}\tdigits\tmlp\t{lr}\t{size}\t{seed}" for i, (seed, size, lr) in enumerate(grid)
    ]
    (folder / "config/runs.tsv").write_text("\n".join(rows) + "\n")


@contextmanager
def counted() -> Iterator[list[float]]:
    """Provide a list that gets the processor seconds of all processes that are started meanwhile, as root.

    The servers of forked ranks are no descendants of this process, but they stay in its control group.
    """
    top, used = Path("/sys/fs/cgroup"), list[float]()
    is_second = (top / "cgroup.controllers").exists()
    top = top if is_second else top / "cpuacct"
    group = top / f"small-trainings-{time.monotonic_ns()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        yield used
        return
    try:
        yield used
        if is_second:
            used.append(int((group / "cpu.stat").read_text().split()[1]) / 1e6)
        else:
            used.append(int((group / "cpuacct.usage").read_text()) / 1e9)
    finally:
        (top / "cgroup.procs").write_text(str(os.getpid()))
        for _ in range(100):
            with suppress(OSError):  # a server has not ended yet
                group.rmdir()
                break
            time.sleep(0.1)


def measure(command: list[str], folder: Path) -> tuple[float, str]:
    """Return how long a command takes, and its processor time as text."""
    with counted() as used:
        begin = time.perf_counter()
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        took = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return took, f"   {used[0]:7.1f} s of CPU" if used else ""


def environment_s(folder: Path) -> float:
    """Return the mean seconds from the start of a training's attempt to its first work."""
    pages = [path.read_text() for path in folder.glob("results/runs/*/provenance.json")]
    found = [float(one) for page in pages for one in re.findall(r'"environment": ([\d.]+)', page)]
    return sum(found) / len(found)


def main() -> None:
    """Print the seconds of each side, and ratios to the loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainings", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=10)
    sides = ["loop", "forked", "started", "scripts", "empty"]
    parser.add_argument("--sides", nargs="+", choices=sides, default=sides[:3])
    args = parser.parse_args()
    snakemake = [
        sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--profile",
        str(REPOSITORY / "profiles/local"), "--cores", str(os.cpu_count()),
    ]  # fmt: skip
    loop = None
    for side in args.sides:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            more = ""
            if side == "loop":
                command = [sys.executable, "-c", LOOP, str(args.trainings), str(args.epochs)]
                took, cpu = measure(command, folder)
                loop = took
            elif side == "scripts":
                (folder / "train.py").write_text(LOOP)
                # each in its own folder: Lightning numbers its folders by what is there, which others change
                one = f"mkdir {{}} && cd {{}} && {sys.executable} ../train.py 1 {args.epochs}"
                many = f"seq {args.trainings} | xargs -P {os.cpu_count()} -I{{}} sh -c '{one}'"
                took, cpu = measure(["sh", "-c", many], folder)
            elif side == "empty":
                (folder / "Snakefile").write_text(EMPTY.replace("JOBS", str(3 * args.trainings)))
                (folder / "empty.py").write_text("open(snakemake.output[0], 'w').close()\n")
                cores = str(os.cpu_count())
                command = [sys.executable, "-m", "snakemake", "--cores", cores, "--quiet"]
                took, cpu = measure(command, folder)
            else:
                write_project(folder, args.trainings, args.epochs, is_warm=side == "forked")
                took, cpu = measure(snakemake, folder)
                more = f"   {environment_s(folder):5.2f} s of each training before its first work"
            ratio = f"   {took / loop:5.2f} x the loop" if loop else ""
            print(f"{side:8} {took:7.1f} s{cpu}{ratio}{more}", flush=True)


if __name__ == "__main__":
    main()
