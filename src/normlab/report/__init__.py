"""DISPLAY: a sweep or a run as data (views) and as one offline page (pages). Reads folders, never trains; no torch."""

from .pages import plot, render, write
from .views import view

__all__ = ["plot", "render", "view", "write"]
