"""The folklore on trial: statements of tutorials as declarations, decided by identities, facts and experiments of the lab.

claim     what a claim is: words, numbers with their ranges      judge     numbers to a verdict, with 5 % of error per claim
sources/  the declarations, by document                          exact/    identities and counter-examples in float64
table     CLAIMS                                                 designs/  experiments that many claims share
run       everything at a budget, resumable                      words     both languages
page      the tables of docs/en/claims.md and docs/zh/claims.md  shipped   the runs that the package comes with
figures   one per claim that samples decide, as SVG              html      all claims of a run as one offline page
compare   two runs: which verdicts are the same
"""

from __future__ import annotations

from .claim import Check, Claim, Fact
from .judge import expected_false, judge
from .run import Progress, Request, run
from .table import CLAIMS, chosen

__all__ = ["CLAIMS", "Check", "Claim", "Fact", "Progress", "Request", "chosen", "expected_false", "judge", "run"]
