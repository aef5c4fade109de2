"""The ports of delegation on real instances, and what our instance needs for it."""

from __future__ import annotations

from pathlib import Path


def flux_delegate_path() -> Path:
    """Return the path of the frobnicator plugin, which Flux loads by its path."""
    return Path(__file__).with_name("flux_delegate.py")
