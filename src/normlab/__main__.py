"""``python -m normlab``, and ``torchrun -m normlab train``."""

from .cli import main

raise SystemExit(main())
