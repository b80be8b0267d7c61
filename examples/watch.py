"""Watch a small decoder train, with a probe of one's own, and ask what is wrong.

The same model is trained twice on the prose of Python's help pages: at a sensible learning rate, and at one 30 times as
high. Each run goes to a folder of its own; the diagnosis reads it from there.
"""

import tempfile
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F

import normlab


class Saturation(normlab.Probe):
    """Share of values after each norm that lie beyond three deviations."""

    on = "norm"

    def measure(self, frame):
        y = frame.y_rows
        return {"saturation": (y.abs() > 3 * y.std()).float().mean()}


def main() -> None:
    data = torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.long)
    folder = Path(tempfile.mkdtemp())
    for name, rate in (("sensible", 3e-3), ("too-high", 0.1)):
        torch.manual_seed(0)
        model = normlab.build(architecture="decoder", dim=32, num_layers=2, num_heads=2, max_length=64)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
        with normlab.watch(model, optimizer=optimizer, out=folder / name, every=2, max_overhead=None,
                           probes=[Saturation()]) as watch:  # fmt: skip
            for _ in range(40):
                at = torch.randint(0, len(data) - 65, (8,))
                batch = data[at[:, None] + torch.arange(65)]
                loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                watch.step(loss=loss)
            print(f"{name}: rate {rate}, loss {loss.item():.2f}, {watch.coverage()}")
        run = normlab.Run(folder / name)
        last = {site: series.last() for site, series in run.series("saturation").items()}
        print(f"saturation after the last norm: {list(last.values())[-1]:.4f}")
        print(normlab.diagnose(run), end="\n\n")


if __name__ == "__main__":
    main()
