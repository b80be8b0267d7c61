"""normlab: a normalization workbench for Transformers.

The public names stand in ``__init__.pyi``, for editors, type checkers and Python alike; each is imported at first use, so that
importing normlab is cheap.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
