"""Where this program keeps what it fetches and makes for itself."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """The folder for weights and compiled code: in $XDG_CACHE_HOME, else in ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "speculative-decoding-explorer"
