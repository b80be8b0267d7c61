"""Each extra installed alone, from one wheel made of the sdist, and its smallest documented use: what a declared list of packages leaves out is
found here and nowhere else, because the development environment holds everything.

    make extras                       all of them
    python tests/extras.py lab ray    some

Every extra gets an environment of its own. torch and what torch itself requires are shared by links, so that nothing else of
the environment that runs this (numpy, for one) can be seen from there.
"""

from __future__ import annotations

import importlib.metadata as metadata
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Use:
    """What is done with an extra: commands of normlab, and a program. ``refused``: commands that must fail at once, and the
    extra their message must name."""

    commands: tuple[str, ...] = ()
    program: str = ""
    refused: tuple[tuple[str, str], ...] = ()


TRAINING = """
import torch, normlab
model = torch.nn.Sequential(torch.nn.Linear(8, 8), normlab.RMSNorm(8), torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(also=()):
    with normlab.watch(model, optimizer=optimizer, out="run", every=1, also=list(also)) as watch:
        for _ in range(3):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad(); loss.backward(); optimizer.step(); watch.step(loss=loss)
"""
SMALL = "--steps 4 --norm rms --placement pre --set num_layers=1 --set dim=16"
GRID = f"compare {SMALL} --lr 1e-3 --seeds 1 --workers 1 --checkpoint-seconds 0"

FIGURES = """
from normlab.claims import CLAIMS
from normlab.claims.run import judge_one
from normlab.runs import ClaimsRun, Evidence, write_claims, write_evidence
found = Evidence(arms={"warm-up": {"post, no warm-up": {0: 3.1, 1: 3.2, 2: 3.3}, "pre, no warm-up": {0: 2.1, 1: 2.2, 2: 2.4}}})
write_evidence("a/b", "warm-up", found)
result = judge_one(CLAIMS["X6"], Evidence(), {"warm-up": found}, "quick")
write_claims("a/b", ClaimsRun(budget="quick", results=(result,)))
"""

USES: dict[str, Use] = {
    "": Use(
        commands=("list", "doctor --no-allocator", f"train {SMALL} --show", "explore -o page.html"),
        program=TRAINING + "train()\nprint(normlab.diagnose('run'))\nprint(normlab.report.write('run', 'run.html'))",
        refused=(
            ("compare", "lab"), ("train --steps 2", "lab"), ("serve run", "ui"), ("completion bash", "completion"), ("report run --figures svg", "figures"),
            ("compare --engine ray", "lab"), ("runs export run a.parquet", "parquet"),
        ),
    ),
    "lab": Use(
        commands=(f"train {SMALL} --out a --checkpoint-seconds 0", "report a", f"{GRID} --out b", "report b"),
        refused=((f"{GRID} --engine ray", "ray"), (f"{GRID} --task digits", "digits")),
    ),
    "ui": Use(
        program=TRAINING + """train()
import json, threading, time, urllib.request
from normlab.report import serve
bound = serve.bind("127.0.0.1", 0)
server = serve.Server(serve.App("."))
thread = threading.Thread(target=server.run, kwargs={"sockets": [bound.socket]}, daemon=True)
thread.start()
while not server.started:
    time.sleep(0.05)
assert [e["key"] for e in json.load(urllib.request.urlopen(bound.address + "data/list"))["entries"]] == ["run"]
assert json.load(urllib.request.urlopen(bound.address + "data/run?at=run"))["last_step"] == 3
server.handle_exit(2, None)
thread.join(10)
""",
    ),
    "digits": Use(commands=(f"{GRID} --task digits --out a",)),
    "datasets": Use(
        program="import datasets\ndatasets.Dataset.from_dict({'text': ['some words ' * 9 + str(i) for i in range(900)]}).save_to_disk('d')\n"
        f"from normlab.cli import main\nraise SystemExit(main('{GRID} --text d --out a'.split()))",
    ),
    "ray": Use(commands=(f"{GRID} --engine ray --out a",)),
    "figures": Use(commands=("report a/b --figures svg",), program=FIGURES),
    "completion": Use(commands=("completion bash",)),
    "parquet": Use(program=TRAINING + "train()\nfrom normlab.cli import main\nraise SystemExit(main('runs export run a.parquet'.split()))"),
    "huggingface": Use(
        program="""
import torch, transformers, normlab
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50, n_positions=16))
data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
how = transformers.TrainingArguments("t", max_steps=2, report_to=[], use_cpu=True, save_strategy="no", per_device_train_batch_size=2)
transformers.Trainer(model, how, train_dataset=data, callbacks=[normlab.callbacks.huggingface("run", every=1)]).train()
assert normlab.Run("run").summary()["recorded_steps"] >= 1
""",
    ),
    "lightning": Use(
        program="""
import torch, lightning, normlab
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), normlab.RMSNorm(8))
    def training_step(self, batch, index):
        return self.model(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
watch = normlab.callbacks.lightning("run", every=1)
trainer = lightning.Trainer(max_steps=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, callbacks=[watch])
trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(8, 8), batch_size=2))
assert normlab.Run("run").summary()["recorded_steps"] >= 1
""",
    ),
    "tensorboard": Use(program=TRAINING + "train([normlab.callbacks.TensorBoard('logs')])\nimport os\nassert os.listdir('logs')"),
    "wandb": Use(program=TRAINING + "import wandb\nwith wandb.init(mode='offline', dir='.') as run:\n    train([normlab.callbacks.WandB(run)])"),
    "mlflow": Use(
        program=TRAINING
        + "import os\nos.environ['MLFLOW_ALLOW_FILE_STORE'] = 'true'\nimport mlflow\nmlflow.set_tracking_uri('file:' + os.getcwd() + '/mlruns')\n"
        "with mlflow.start_run():\n    train([normlab.callbacks.MLflow()])",
    ),
}  # fmt: skip


def without_extras(name: str, found: dict[str, metadata.Distribution]) -> dict[str, metadata.Distribution]:
    """A distribution and what it requires, extras aside."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name not in found:
        found[name] = metadata.distribution(name)
        for line in found[name].requires or ():
            if "extra ==" not in line and ("platform_system" not in line or "nvidia" not in line):
                without_extras(re.split(r"[\s<>=!~;\[(]", line, maxsplit=1)[0], found)
    return found


def link_torch(folder: Path) -> list[str]:
    """Links to the top of everything torch needs; returns the names of the distributions."""
    found = without_extras("torch", {})
    folder.mkdir(parents=True, exist_ok=True)
    for distribution in found.values():
        for top in {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}:
            link = folder / top
            if not link.is_symlink():
                link.symlink_to(Path(str(distribution.locate_file(top))))
    return sorted(found)


def run(*command: object, cwd: Path, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    outside = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {k: v for k, v in os.environ.items() if k not in outside} | {"PYTHONWARNINGS": "default"}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip


def must(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, done.args))[:300]}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout + done.stderr


def check(extra: str, wheel: Path, shared: Path, folder: Path) -> None:
    environment, place = folder / "venv", folder / "work"
    place.mkdir(parents=True)
    must(run(sys.executable, "-m", "venv", environment, cwd=folder))
    python = environment / "bin" / "python"
    (site,) = (environment / "lib").glob("python*/site-packages")
    (site / "torch.pth").write_text(f"{shared}\n")
    target = f"{wheel}[{extra}]" if extra else str(wheel)
    must(run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", target, cwd=place))
    said = ""
    if USES[extra].program:
        said += must(run(python, "-c", USES[extra].program, cwd=place))
    for command in USES[extra].commands:
        said += must(run(python, "-m", "normlab", *command.split(), cwd=place))
    if "compare" in " ".join((*USES[extra].commands, USES[extra].program)) and "NumPy" in said:
        raise SystemExit(f"[{extra}]: the lab trains with warnings of torch about numpy:\n{said[-3000:]}")
    for command, named in USES[extra].refused:
        before = sorted(place.rglob("*"))
        done = run(python, "-m", "normlab", *command.split(), cwd=place)
        if done.returncode == 0 or f"normlab[{named}]" not in done.stderr or "Traceback" in done.stderr:
            raise SystemExit(
                f"normlab {command}: should have named normlab[{named}]\n{done.stdout}\n{done.stderr[-3000:]}"
            )
        if sorted(place.rglob("*")) != before:
            raise SystemExit(f"normlab {command}: wrote files before it refused")


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_sdist = "import sys; from scikit_build_core.build import build_sdist as b; b(sys.argv[1])"
        must(run(sys.executable, "-c", make_sdist, folder, cwd=ROOT))
        (sdist,) = folder.glob("*.tar.gz")  # the wheel is built from it, so that it is known to build by itself
        must(run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-c", ROOT / "constraints.txt", "-w", folder, sdist,
                 cwd=folder, timeout=1800))  # fmt: skip
        (wheel,) = folder.glob("*.whl")
        print("shared:", ", ".join(link_torch(folder / "torch")), flush=True)
        for extra in chosen or USES:
            start = time.monotonic()
            check(extra, wheel, folder / "torch", folder / f"with-{extra}")
            print(f"[{extra}]: ok, {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
