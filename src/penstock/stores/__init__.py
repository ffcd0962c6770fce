"""Where states live: one backend per file or folder, each with one atomic `apply`."""

from .opening import open_store

__all__ = ["open_store"]
