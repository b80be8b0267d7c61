"""normlab claims."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .answers import add_language, language
from .compare import cores
from .options import Verb
from .show import complain, note, say, say_json, say_wrapped, table
from .stopping import SIGTERM_CODE, Terminated, ended_by_sigterm

if TYPE_CHECKING:
    from ..claims import Claim, Progress
    from ..runs import ClaimResult, ClaimsRun

CLAIMS = """examples:
  normlab claims --quick               exact claims and coarse experiments, at most five minutes on two cores
  normlab claims                       up to an hour; the same command goes on after an interruption
  normlab claims --full --engine ray   a night, or a cluster
  normlab claims show C93              one claim: what it says, how it is tested, the shipped verdict; runs nothing
  normlab claims list --source S4      all claims of a document with the shipped verdicts; runs nothing
  normlab claims --only C17,C93 --lang zh
  normlab claims --first-seed 100 --out runs/again
  normlab claims compare runs/claims-default runs/again   which verdicts of two runs are the same
  normlab claims --quick --json
"""
WORDS = {
    "claim": ("claim", "说法"), "verdict": ("verdict", "结论"), "number": ("what decides", "起决定作用的数"), "source": ("source", "出处"),
    "says": ("claim", "说法"), "how": ("test", "检验"), "design": ("experiment", "实验"), "literature": ("literature", "文献"),
    "claimed": ("as claimed", "说法要求"), "measured": ("measured", "实测"), "part": ("part", "部分"), "core": ("core", "核心"),
    "reach": ("reach", "外延"), "outcome": ("outcome", "结果"), "again": ("run it again", "重新运行"),
    "why": ("why", "原因"), "open": ("open", "尚缺"), "run": ("run", "运行"),
    "budget": ("budget {budget}, {machine}, {created}", "预算 {budget}，{machine}，{created}"),
    "seeds": ("about {n} more seeds would decide, if mean and spread held", "若均值和离散程度不变，再加约 {n} 个种子可有定论"),
    "none": ("no shipped verdict", "没有随包附带的结论"),
    "title": ("claims, budget {budget}", "各条说法，预算 {budget}"),
    "changed": ("differs from the shipped verdict: {id} was {before}, now {now}", "与随包附带的结论不同：{id} 原为“{before}”，现为“{now}”"),
    "folder": ("folder: {folder}", "目录：{folder}"),
    "first": ("first run", "第一次运行"), "second": ("second run", "第二次运行"), "same": ("same", "相同"),
}  # fmt: skip
EXIT_CHANGED = 3


def add(verb: Verb) -> None:
    claims = verb(
        "claims", "Put the folklore about normalization to the test, and say what holds.", "normlab claims --quick"
    )
    claims.formatter_class, claims.epilog = argparse.RawDescriptionHelpFormatter, CLAIMS
    claims.add_argument(
        "what", nargs="*", metavar="WHAT", help="nothing: run; show ID ...; list; compare FOLDER FOLDER"
    )
    size = claims.add_mutually_exclusive_group()
    size.add_argument(
        "--quick", action="store_true", help="all exact claims, coarse versions of the strongest experiments"
    )
    size.add_argument("--full", action="store_true", help="with the long comparisons")
    claims.add_argument("--only", metavar="IDS", help="claims by id, separated by commas")
    claims.add_argument("--source", help="claims of one document: S0 to S4")
    claims.add_argument("--exact", action="store_true", help="without experiments: identities and facts, in seconds")
    claims.add_argument(
        "-o", "--out", type=Path, help="folder (default runs/claims-BUDGET); one that holds a part is gone on with"
    )
    claims.add_argument("--workers", type=int, help="trials at a time (default: one per core)")
    claims.add_argument(
        "--first-seed", type=int, default=0, metavar="N", help="seeds from N on, for a second run (default 0)"
    )
    claims.add_argument("--engine", choices=("local", "ray"), default="local", help="(default local)")
    claims.add_argument("--address", help="of the Ray cluster")
    claims.add_argument(
        "--expect", type=Path, metavar="FOLDER", help="compare with this run of claims instead of the shipped one"
    )
    claims.add_argument(
        "--write",
        type=Path,
        metavar="DOCS",
        help="write the tables and figures of claims.md in this folder's en and zh from the shipped run; with compare, its table; runs nothing",
    )
    add_language(claims)
    claims.add_argument(
        "--json", action="store_true", help="print the results as JSON; progress goes to standard error"
    )


def run(args: argparse.Namespace) -> int:
    from ..claims import chosen
    from ..errors import UnknownName
    from ..runs import read_claims

    try:
        if args.what and args.what[0] not in ("show", "list", "compare"):
            raise ValueError(f"WHAT is show, list or compare, or nothing to run; got {args.what[0]!r}")
        if args.what[:1] == ["compare"]:
            if len(args.what) != 3:
                raise ValueError(
                    "compare needs the folders of two runs, such as: normlab claims compare runs/claims-default runs/again"
                )
            return _compare(args)
        if args.what[:1] == ["show"] and len(args.what) < 2:
            raise ValueError("show needs the id of a claim, such as: normlab claims show C93")
        if args.what[:1] == ["list"] and len(args.what) > 1:
            raise ValueError(f"list takes no more words, got {' '.join(args.what[1:])}")
        if args.workers is not None and args.workers < 1:
            raise ValueError(f"--workers must be at least 1, got {args.workers}")
        if args.first_seed < 0:
            raise ValueError(f"--first-seed must be at least 0, got {args.first_seed}")
        only = args.what[1:] if args.what[:1] == ["show"] else (args.only or "").split(",") if args.only else []
        if args.expect is not None:
            read_claims(args.expect)  # a folder without a run is a mistake to be told of before an hour of work
        claims = chosen(only, args.source)
        if not claims:
            raise ValueError("no claim fits --only and --source together")
    except (UnknownName, ValueError) as error:
        complain("claims", error)
        return 2
    if args.write is not None:
        return _write(args.write)
    if args.what:
        return _show(args, claims) if args.what[0] == "show" else _list(args, claims)
    return _run(args, claims)


def _said(key: str, lang: str, **values: Any) -> str:
    from ..claims.words import pick

    return pick(WORDS[key], lang).format(**values)


# ---- without running -------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace, claims: list[Claim]) -> int:
    from ..claims.shipped import best_shipped

    known = best_shipped()
    found = {} if known is None else known.by_id()
    if args.json:
        say_json([{"id": c.id, "source": c.source, "kind": c.kind, "says": c.says[0], "says_zh": c.says[1],
                   "verdict": found[c.id].verdict if c.id in found else None} for c in claims])  # fmt: skip
        return 0
    _table([(c, found.get(c.id)) for c in claims], language(args.lang), "default" if known is None else known.budget)
    return 0


def _write(docs: Path) -> int:
    from ..claims import figures, page
    from ..claims.shipped import best_folder
    from ..runs import read_claims

    folder = best_folder()
    try:
        if folder is None:
            raise ValueError("no run of claims is shipped")
        known = read_claims(folder)
        pages = page.write(known, docs)  # first: a folder without them gets no figures
        drawn = (
            figures.write(folder, docs / "figures" / "claims") if any(map(figures.has_figure, known.results)) else []
        )
        for path in (*pages, *drawn):
            say(path)
    except (ImportError, ValueError, OSError) as error:
        complain("claims", error)
        return 1
    return 0


def _compare(args: argparse.Namespace) -> int:
    """Two runs, by their claims.json."""
    from ..claims import compare
    from ..errors import RunUnreadable
    from ..runs import read_claims

    try:
        first, second = (read_claims(Path(name)) for name in args.what[1:])
        rows = compare.rows_of(first, second)
        if not rows:
            raise RunUnreadable("no claim ran in both")
        if args.write is not None:
            for path in compare.write(first, second, args.write):
                say(path)
            return 0
    except (RunUnreadable, ValueError, OSError) as error:
        complain("claims", error)
        return 1
    lang = language(args.lang)
    if args.json:
        again = compare.repeated(rows)
        say_json({"repeated": again.same, "decided": again.all,
                  "claims": [{"id": r.id, "first": r.first, "second": r.second, "sampled": r.sampled, "outcome": r.outcome} for r in rows]})  # fmt: skip
        return 0
    table(
        "",
        ["", *(_said(k, lang) for k in ("claim", "first", "second", "same"))],
        [compare.cells(r, lang) for r in rows],
    )
    for line in (
        compare.described(first, "first", lang),
        compare.described(second, "second", lang),
        *compare.summary(rows, lang),
    ):
        say_wrapped(line)
    return 0


def _show(args: argparse.Namespace, claims: list[Claim]) -> int:
    from ..claims.shipped import best_shipped

    known = best_shipped()
    found = {} if known is None else known.by_id()
    if args.json:
        say_json([{"id": c.id, "result": found[c.id].to_dict() if c.id in found else None} for c in claims])
        return 0
    for claim in claims:
        _show_one(claim, found.get(claim.id), known, language(args.lang))
    return 0


def _show_one(claim: Claim, result: ClaimResult | None, run: ClaimsRun | None, lang: str) -> None:
    from ..claims import words
    from ..claims.designs import DESIGNS

    def line(key: str, text: str) -> None:
        say_wrapped(f"  {_said(key, lang)}{words.pick((': ', '：'), lang)}{text}", "    ")

    kind = words.pick(words.KIND[claim.kind], lang)
    say_wrapped(f"{claim.id} ({claim.source}, {kind}) {words.pick(claim.says, lang)}", "    ")
    line("how", words.pick(claim.how, lang))
    for name in claim.designs:
        if name in DESIGNS:
            line("design", f"{name}{words.pick((': ', '：'), lang)}{words.pick(DESIGNS[name].about, lang)}")
    if claim.literature is not None:
        line("literature", words.pick(claim.literature, lang))
    line("verdict", _said("none", lang) if result is None else words.pick(words.VERDICT[result.verdict], lang))
    if result is not None and (why := words.reason(result, claim, lang)):
        line("why", why)
    checks = words.declared(claim) if result is None else result.checks
    if checks:
        rows = [[words.pick(words.what_of(claim, i), lang), _said("core" if c.core else "reach", lang),
                 words.claimed_range(c, lang), words.measured(c, lang), "-" if result is None else words.pick(words.OUTCOME[c.outcome], lang)]
                for i, c in enumerate(checks)]  # fmt: skip
        table("", [_said(k, lang) for k in ("number", "part", "claimed", "measured", "outcome")], rows)
    flag = ""
    if result is not None and run is not None:
        if result.further_seeds is not None:
            line("open", _said("seeds", lang, n=result.further_seeds))
        cpu = run.machine.get("cpu", "") if isinstance(run.machine, dict) else ""
        budget = words.named_budget(result.budget, lang)
        line("run", _said("budget", lang, budget=budget, machine=cpu, created=(run.created or "")[:10]))
        flag = {"quick": " --quick", "full": " --full"}.get(result.budget, "")
    line("again", f"normlab claims --only {claim.id}{flag}")


def _table(rows: list[tuple[Claim, ClaimResult | None]], lang: str, budget: str) -> None:
    from ..claims import words

    shown = []
    for claim, result in rows:
        verdict = "-" if result is None else words.pick(words.VERDICT[result.verdict], lang)
        shown.append(
            [
                claim.id,
                words.pick(claim.says, lang),
                verdict,
                "-" if result is None else words.deciding(claim, result, lang),
            ]
        )
    title = _said("title", lang, budget=words.named_budget(budget, lang))
    table(title, ["", _said("claim", lang), _said("verdict", lang), _said("number", lang)], shown)


# ---- running ---------------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace, claims: list[Claim]) -> int:
    from ..claims import Request, expected_false, words
    from ..claims import run as run_claims
    from ..claims.run import needed
    from ..errors import RunUnreadable, require
    from ..lab import FolderInUse, Plan, StorageFailed
    from ..lab.checkpoint import NEEDS
    from ..lab.pool import Pool, WorkerFailed
    from ..lab.told import duration

    budget = "quick" if args.quick else "full" if args.full else "default"
    tell = note if args.json else say
    if args.exact:
        claims = [c for c in claims if not c.designs]
    folder = (
        args.out
        or Path("runs")
        / f"claims-{budget}{f'-seed{args.first_seed}' if args.first_seed else ''}{'-exact' if args.exact else ''}"
    )
    workers = args.workers or cores()

    def engine_of(planned: Plan) -> Any:
        if args.engine == "local":
            return Pool(planned.workers)
        from ..lab.cluster import Cluster

        return Cluster(address=args.address, workers=args.workers)

    def hear(kind: str, progress: Progress) -> None:
        if kind == "design":
            tell(f"{progress.design}: {progress.ended} of {progress.trials} trials have ended")
        elif progress.ended % 5 == 0 or progress.ended == progress.trials:
            left = progress.left()
            tell(
                f"  {progress.ended}/{progress.trials} {progress.design}"
                + ("" if left is None else f"; {duration(left)} left")
            )

    again = "the same command goes on"
    try:
        if designs := needed(claims, budget):
            require("normlab claims", "digits", *NEEDS, "sklearn")
            tell(f"experiments: {', '.join(d.name for d in designs)}")
        tell(_said("folder", language(args.lang), folder=folder))
        with ended_by_sigterm():
            found = run_claims(Request(claims=claims, budget=budget, folder=folder, workers=workers, engine_of=engine_of,
                                       first_seed=args.first_seed, notify=hear))  # fmt: skip
    except (
        FolderInUse,
        ImportError,
        WorkerFailed,
        StorageFailed,
        RunUnreadable,
        RuntimeError,
        ValueError,
        OSError,
    ) as error:
        complain("claims", error)
        return 1
    except KeyboardInterrupt as error:
        note("")
        complain("claims", f"stopped; what is finished is kept in {folder}, and {again}")
        return SIGTERM_CODE if isinstance(error, Terminated) else 130
    lang = language(args.lang)
    if args.json:
        say_json(found.to_dict())
    else:
        by_id = found.by_id()
        _table([(c, by_id[c.id]) for c in claims], lang, budget)
        say_wrapped(words.summary_line(found.results, expected_false(found.results), lang))
    return _compared(args, found, lang, tell)


def _compared(args: argparse.Namespace, found: ClaimsRun, lang: str, tell: Any) -> int:
    """Against the shipped run of this budget, or the one named."""
    from ..claims import words
    from ..claims.shipped import changes, shipped
    from ..errors import RunUnreadable
    from ..runs import read_claims

    try:
        expected = read_claims(args.expect) if args.expect is not None else shipped(found.budget)
    except RunUnreadable as error:
        complain("claims", error)
        return 1
    changed = [] if expected is None else changes(found, expected)
    for change in changed:
        before, now = (words.pick(words.VERDICT[v], lang) for v in (change.before, change.now))
        tell(_said("changed", lang, id=change.id, before=before, now=now))
    return EXIT_CHANGED if changed else 0
