"""Differential fuzz of the native boundary: strange but valid inputs must give the right answer, wrong ones a clean error.

One integer is one case. ``cases`` draws it (and says in one table, TWISTS, what counts as valid and what as wrong), ``dressing``
and ``memory`` lay its tensors out, ``judge`` runs it three ways and compares, ``runner`` goes through integers in a child process, so
that a crash is a finding with a number and not the end. By hand:

    PYTHONPATH=tests python -m fuzz --seconds 60        PYTHONPATH=tests python -m fuzz --case 4711
"""

import os

# read when torch loads OpenMP: threads of cases that wait would otherwise spin, with more of them than cores
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
