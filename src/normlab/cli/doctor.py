"""normlab doctor."""

from __future__ import annotations

import argparse

from .options import Verb
from .show import say, say_json, table


def add(verb: Verb) -> None:
    doctor = verb("doctor", "Say what runs on this machine and why.", "normlab doctor")
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.add_argument("--no-allocator", action="store_true", help="skip the allocator measurement (a few seconds)")


def run(args: argparse.Namespace) -> int:
    from ..bench import doctor

    facts = doctor.examine(measure_allocator=not args.no_allocator)
    if args.json:
        say_json(facts)
        return 0
    isas = ", ".join(f"{name}{'' if has else ' (not on this machine)'}" for name, has in facts["isas"].items())
    pools = len(facts["thread_pools"])
    lines = [
        ("device", facts["device"]),
        ("other devices", facts["other_devices"]),
        ("torch", f"{facts['torch']}, Python {facts['python']}"),
        ("native kernels", f"yes, instruction set {facts['isa']}" if facts["native"] else f"NO: {facts['native_missing']}; every op runs on the reference formulas"),
        ("in this build", isas or "none"),
        ("threads", f"{facts['threads']}" + ("" if facts["openmp"] or not facts["native"] else " (kernels were built without OpenMP: they use one)")),
        ("thread pools", "one, shared with torch" if pools == 1 else f"{pools}: {', '.join(facts['thread_pools'])}"),
        ("kernel request", facts["request"]),
        ("16-bit products", facts["bfloat16_products"]["note"]),
        ("huge pages", f"{'asked for' if facts['huge_pages']['asked_for'] else 'not asked for'}: {facts['huge_pages']['reason']}"),
    ]  # fmt: skip
    table("normlab doctor", ["", ""], [list(line) for line in lines])
    table("kernel per op", ["op", "kernel", "why"], [[op, *choice] for op, choice in facts["kernels"].items()])
    if facts["allocator"]:
        rows = [
            [t["setting"], "-" if t["fresh_over_reused"] is None else f"{t['fresh_over_reused']:.2f}x", t["note"]]
            for t in facts["allocator"]
        ]
        table("128 MiB written to fresh memory, relative to reused memory", ["setting", "cost", ""], rows)
    say(facts["allocator_advice"])
    if facts["huge_pages"]["milliseconds"]:
        say(facts["huge_pages"]["advice"])
    return 0
