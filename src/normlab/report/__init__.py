"""DISPLAY: a sweep or a run as data (views) and as one offline page (html). Reads folders, never trains; no torch."""

from .html import render, write
from .views import view

__all__ = ["render", "view", "write"]
