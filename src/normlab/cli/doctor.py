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

    found = doctor.examine(measure_allocator=not args.no_allocator)
    if args.json:
        say_json(found)
        return 0
    isas = ", ".join(f"{name}{'' if has else ' (not on this machine)'}" for name, has in found["isas"].items())
    pools = len(found["thread_pools"])
    lines = [
        ("device", found["device"]),
        ("other devices", found["other_devices"]),
        ("torch", f"{found['torch']}, Python {found['python']}"),
        ("native kernels", f"yes, instruction set {found['isa']}" if found["native"] else f"NO: {found['native_missing']}; every op runs on the reference formulas"),
        ("in this build", isas or "none"),
        ("threads", f"{found['threads']}" + ("" if found["openmp"] or not found["native"] else " (kernels were built without OpenMP: they use one)")),
        ("thread pools", "one, shared with torch" if pools == 1 else f"{pools}: {', '.join(found['thread_pools'])}"),
        ("kernel request", found["request"]),
        ("16-bit products", found["bfloat16_products"]["note"]),
        ("huge pages", f"{'asked for' if found['huge_pages']['asked_for'] else 'not asked for'}: {found['huge_pages']['reason']}"),
    ]  # fmt: skip
    table("normlab doctor", ["", ""], [list(line) for line in lines])
    table("kernel per op", ["op", "kernel", "why"], [[op, *choice] for op, choice in found["kernels"].items()])
    if found["allocator"]:
        rows = [
            [t["setting"], "-" if t["fresh_over_reused"] is None else f"{t['fresh_over_reused']:.2f}x", t["note"]]
            for t in found["allocator"]
        ]
        table("128 MiB written to fresh memory, relative to reused memory", ["setting", "cost", ""], rows)
    say(found["allocator_advice"])
    if found["huge_pages"]["milliseconds"]:
        say(found["huge_pages"]["advice"])
    return 0
