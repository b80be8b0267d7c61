"""What is inside a model that normlab did not build: its norms by behaviour, its blocks and their placement by dataflow."""

from __future__ import annotations

from .branches import Branch
from .capture import GraphCapture, OperatorCapture
from .dataflow import structure_of
from .find import Survey, find_blocks, find_norms, find_residuals, identify, stream_of, survey
from .inspection import inspect
from .sites import BlockSite, NormSite, UnknownSite
from .structure import AttentionSite, Block, Stack, Structure

__all__ = [
    "AttentionSite",
    "Block",
    "BlockSite",
    "Branch",
    "GraphCapture",
    "NormSite",
    "OperatorCapture",
    "Stack",
    "Structure",
    "Survey",
    "UnknownSite",
    "find_blocks",
    "find_norms",
    "find_residuals",
    "identify",
    "inspect",
    "stream_of",
    "structure_of",
    "survey",
]
