"""200 layers, narrow, on a CPU: DeepNorm trains where the same network in Post-LN does not.

A byte-level language model on the prose of Python's own help pages: width 32, two heads, Adam at a constant 1e-3 without
warm-up. Both networks have the same parameters in number and see the same batches. The full run takes some minutes per
placement; --layers and --steps make it smaller. docs/en/placements.md holds the curve measured with the defaults.
"""

import argparse
import json
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F

import normlab


def text() -> torch.Tensor:
    return torch.tensor(list("\n".join(topics[name] for name in sorted(topics)).encode()), dtype=torch.long)


def train(placement: str, layers: int, steps: int, seed: int, show_every: int) -> list[float]:
    """The loss of each step, in nats per byte."""
    torch.manual_seed(seed)
    model = normlab.build(architecture="decoder", dim=32, num_layers=layers, num_heads=2, vocab_size=256, max_length=64,
                          placement=placement)  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data, draw = text(), torch.Generator().manual_seed(seed)
    losses, start = [], time.perf_counter()
    for step in range(steps):
        at = torch.randint(0, len(data) - 65, (16,), generator=draw)
        batch = data[at[:, None] + torch.arange(65)]
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % show_every == 0:
            recent = losses[-show_every:]
            print(f"{placement:9s} step {step + 1:4d}  loss {sum(recent) / len(recent):.3f}  "
                  f"{time.perf_counter() - start:5.0f} s", flush=True)  # fmt: skip
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--placements", nargs="+", default=["deepnorm", "post"])
    parser.add_argument("--json", type=Path, help="write all losses to this file")
    args = parser.parse_args()
    # Post-LN's gradients vanish into subnormal numbers, on which processors are several times slower.
    torch.set_flush_denormal(True)
    counts = torch.bincount(text(), minlength=256).double()
    share = counts[counts > 0] / counts.sum()
    print(f"a model that knows only how frequent each byte is: {-(share * share.log()).sum():.3f} nats per byte")
    show_every = max(1, args.steps // 6)
    curves = {
        f"{placement}/{seed}": train(placement, args.layers, args.steps, seed, show_every)
        for seed in range(args.seeds)
        for placement in args.placements
    }
    for name, losses in curves.items():
        tail = losses[-show_every:]
        print(
            f"{name:12s} {args.layers} layers: first {losses[0]:.3f}, mean of the last {len(tail)} steps {sum(tail) / len(tail):.3f}"
        )
    if args.json:
        args.json.write_text(json.dumps({"layers": args.layers, "curves": curves}))


if __name__ == "__main__":
    main()
