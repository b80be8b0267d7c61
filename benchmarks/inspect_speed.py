"""What looking into a deep model takes: 48 layers of Llama, tiny in width, captured both ways and classified.

Capturing is the time beyond the forward pass itself; both are taken in turn, and of each the median of the rounds is given, with
the fastest. Finding the norms by behaviour, which comes first, is given apart. Times are processor time of one thread, which other
processes hardly touch.

    python benchmarks/inspect_speed.py --json out.json
"""

import argparse
import json
import os
import statistics
import time
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

from normlab import machine
from normlab.surgery import GraphCapture, OperatorCapture, structure_of, survey

SIZES = {"vocab_size": 37, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 48, "num_attention_heads": 3,
         "num_key_value_heads": 3, "max_position_embeddings": 32}  # fmt: skip


def llama():
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def timed(run):
    began = time.process_time()
    result = run()
    return 1e3 * (time.process_time() - began), result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, tokens = llama(), torch.arange(2, 10).unsqueeze(0)

    def forward():
        return model(tokens, use_cache=False)

    def by_graph():
        with GraphCapture(model, found.norms) as capture:
            output = forward()
        return capture.finish(output)

    def by_operators():
        capture = OperatorCapture(model, found.norms)
        capture.begin(tokens)
        with torch.no_grad(), capture:
            output = forward()
        return capture.finish(output)

    def without_gradients():
        with torch.no_grad():
            return forward()

    times = {name: [] for name in ("survey", "graph", "operators", "classify graph", "classify operators")}
    for _ in range(args.rounds):
        took, found = timed(lambda: survey(model))
        times["survey"].append(took)
        for name, capture, plain in (("graph", by_graph, forward), ("operators", by_operators, without_gradients)):
            base, _ = timed(plain)
            took, flow = timed(capture)
            times[name].append(took - base)
            took, structure = timed(partial(structure_of, flow, found, name))
            times[f"classify {name}"].append(took)
            assert structure.placement == "pre" and len(structure.blocks) == 48
    rows = [{"part": n, "median_ms": statistics.median(t), "fastest_ms": min(t)} for n, t in times.items()]
    for row in rows:
        print(f"{row['part']:20s} {row['median_ms']:7.1f} ms (fastest {row['fastest_ms']:.1f})")
    print(f"{len(flow.nodes)} nodes, {len(flow.calls)} calls")
    if args.json:
        args.json.write_text(
            json.dumps({"machine": machine.description(), "sizes": SIZES, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
