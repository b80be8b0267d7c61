# The public names: what editors, type checkers and, through lazy_loader, Python itself see of normlab.

from . import answer as answer
from . import assays as assays
from . import callbacks as callbacks
from . import functional as functional
from . import lab as lab
from . import models as models
from . import placements as placements
from . import report as report
from . import runs as runs
from .diagnosis import diagnose as diagnose
from .errors import KernelUnavailable as KernelUnavailable
from .errors import RunUnreadable as RunUnreadable
from .errors import TransformUnsupported as TransformUnsupported
from .kernels import use_kernel as use_kernel
from .lab import Experiment as Experiment
from .lab import Sweep as Sweep
from .lab import lr_range as lr_range
from .leaks import leaks as leaks
from .models import TransformerConfig as TransformerConfig
from .models import build as build
from .norms import NORMS as NORMS
from .norms import BatchNorm as BatchNorm
from .norms import Derf as Derf
from .norms import DyT as DyT
from .norms import GroupNorm as GroupNorm
from .norms import InstanceNorm as InstanceNorm
from .norms import LayerNorm as LayerNorm
from .norms import PowerNorm as PowerNorm
from .norms import ResidualNorm as ResidualNorm
from .norms import RMSNorm as RMSNorm
from .norms import ScaleNorm as ScaleNorm
from .norms import make_norm as make_norm
from .placements import PLACEMENTS as PLACEMENTS
from .runs import Run as Run
from .surgery import find_blocks as find_blocks
from .surgery import find_norms as find_norms
from .surgery import inspect as inspect
from .watch import Probe as Probe
from .watch import watch as watch

__version__: str
