"""What is inside a model that normlab did not build: its norms, blocks and residual sums, found by behaviour."""

from __future__ import annotations

from .find import Survey, find_blocks, find_norms, find_residuals, identify, stream_of, survey
from .sites import BlockSite, NormSite, UnknownSite

__all__ = ["BlockSite", "NormSite", "Survey", "UnknownSite", "find_blocks", "find_norms", "find_residuals", "identify", "stream_of", "survey"]
