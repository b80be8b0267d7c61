"""What is inside a model that normlab did not build: its norms, blocks and residual sums, found by behaviour."""

from __future__ import annotations

from .find import BlockSite, NormSite, find_blocks, find_norms, find_residuals, identify, stream_of

__all__ = ["BlockSite", "NormSite", "find_blocks", "find_norms", "find_residuals", "identify", "stream_of"]
