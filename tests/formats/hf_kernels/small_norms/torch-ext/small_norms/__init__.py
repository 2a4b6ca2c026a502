"""Norms, as layers and as a function."""

from ._norm import scaled

__all__ = ["scaled"]
