"""What lies on disk: runs, sweeps and summaries. Training writes them, everything that displays or judges reads them. No torch.

    run.json         what ran: schema, status, configuration, seed, versions, machine, sites, coverage. Replaced as a whole.
    readings.jsonl   what was measured: one line per loss and per recorded step, appended. A torn last line is legal and ignored.
    sweep.json       what is compared                    summary.json   the answer

files    a file may be anything: bounded reading, whole replacing       shapes   what each may hold
run      one run: Writer, Run, exports

A line is {"step": 12, "time": 3.41, "values": {probe: {site: number}}}; an event is {"step": 40, "time": 9.5,
"event": "nonfinite", ...}. Numbers that JSON lacks are the strings "nan", "inf" and "-inf".

A file may have been damaged, edited or made to harm. Whatever passes here has the types that ``shapes`` names, and finite
numbers; all else is :class:`normlab.RunUnreadable` with file, place and fault. No reader has to check again.
"""

from __future__ import annotations

from .files import read_text, replace_file, replacing
from .run import INFO, READINGS, SCHEMA, Run, Series, Writer, decode, encode, export_csv, export_parquet, find
from .shapes import STATUSES, SUMMARY, SWEEP, Kind, read

__all__ = [
           "INFO",
           "READINGS",
           "SCHEMA",
           "STATUSES",
           "SUMMARY",
           "SWEEP",
           "Kind",
           "Run",
           "Series",
           "Writer",
           "decode",
           "encode",
           "export_csv",
           "export_parquet",
           "find",
           "read",
           "read_text",
           "replace_file",
           "replacing",
]  # fmt: skip
