"""What lies on disk: runs, sweeps and summaries. Training writes them, everything that displays or judges reads them. No torch.

    run.json         what ran: schema, status, configuration, seed, versions, machine, sites, coverage. Replaced as a whole.
    readings.jsonl   what was measured: one line per loss and per recorded step, appended. A torn last line is legal and ignored.
    sweep.json       what is compared                    summary.json   the answer

files    a file may be anything: bounded reading, whole replacing       shapes   what a field may hold
run      one run: Writer, Run, exports (contents: what its files hold)  records  results, cells, differences, the summary
sweep    one sweep: its grid, its trials' folders, its summary          axes     of a grid, and the names of its cells
claims   what was measured for claims, and their verdicts
rule_names  rules of the diagnosis in words
spread   a quantity over steps and sites, of several runs in one table
tail     what has come to a run since a place in its readings

A line is {"step": 12, "time": 3.41, "values": {probe: {site: number}}}; an event is {"step": 40, "time": 9.5,
"event": "nonfinite", ...}. Numbers that JSON lacks are the strings "nan", "inf" and "-inf".

A file may have been damaged, edited or made to harm. Whatever passes here has the types that ``shapes`` names, and finite
numbers; all else is :class:`normlab.RunUnreadable` with file, place and fault. No reader has to check again.
"""

from __future__ import annotations

from .axes import LR, SEED, WITHIN_CELLS, Axes, cell_name, check_distinct, outer, plain, same
from .claims import (
    BUDGETS,
    CLAIMS,
    DECIDED,
    VERDICTS,
    CheckResult,
    ClaimResult,
    ClaimsRun,
    Evidence,
    holds_claims,
    read_all_evidence,
    read_claims,
    read_evidence,
    write_claims,
    write_evidence,
)
from .contents import STATUSES
from .files import (
    LinkedElsewhere,
    check_file,
    check_place,
    confined,
    parsed,
    present,
    read_json,
    read_text,
    replace_file,
    replacing,
)
from .records import (
    OUTCOMES,
    SUMMARY,
    Cell,
    Choice,
    Difference,
    Estimate,
    Rate,
    Refused,
    Result,
    Summary,
    Trait,
    TrialFinding,
    TrialResult,
    Verdict,
)
from .rule_names import RULE_NAMES, in_chinese
from .run import INFO, READINGS, SCHEMA, HeldRun, Run, Series, Writer, decode, encode, export_csv, export_parquet, find
from .spread import Spread, spread, spread_table, spreads
from .sweep import (
    EQUAL,
    SWEEP,
    TRIALS,
    TRIALS_TABLE,
    Grid,
    check_trial_folder,
    finished_result,
    holds_summary,
    holds_sweep,
    read_grid,
    read_summary,
    read_trial,
    read_trials,
    trial_folder,
    write_grid,
    write_summary,
)
from .tail import Grown, Place, end_of, grown

__all__ = [
    "BUDGETS",
    "CLAIMS",
    "DECIDED",
    "EQUAL",
    "INFO",
    "LR",
    "OUTCOMES",
    "READINGS",
    "RULE_NAMES",
    "SCHEMA",
    "SEED",
    "STATUSES",
    "SUMMARY",
    "SWEEP",
    "TRIALS",
    "TRIALS_TABLE",
    "VERDICTS",
    "WITHIN_CELLS",
    "Axes",
    "Cell",
    "CheckResult",
    "Choice",
    "ClaimResult",
    "ClaimsRun",
    "Difference",
    "Estimate",
    "Evidence",
    "Grid",
    "Grown",
    "HeldRun",
    "LinkedElsewhere",
    "Place",
    "Rate",
    "Refused",
    "Result",
    "Run",
    "Series",
    "Spread",
    "Summary",
    "Trait",
    "TrialFinding",
    "TrialResult",
    "Verdict",
    "Writer",
    "cell_name",
    "check_distinct",
    "check_file",
    "check_place",
    "check_trial_folder",
    "confined",
    "decode",
    "encode",
    "end_of",
    "export_csv",
    "export_parquet",
    "find",
    "finished_result",
    "grown",
    "holds_claims",
    "holds_summary",
    "holds_sweep",
    "in_chinese",
    "outer",
    "parsed",
    "plain",
    "present",
    "read_all_evidence",
    "read_claims",
    "read_evidence",
    "read_grid",
    "read_json",
    "read_summary",
    "read_text",
    "read_trial",
    "read_trials",
    "replace_file",
    "replacing",
    "same",
    "spread",
    "spread_table",
    "spreads",
    "trial_folder",
    "write_claims",
    "write_evidence",
    "write_grid",
    "write_summary",
]  # fmt: skip
