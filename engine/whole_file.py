"""Files that are written whole or not at all. Knows nothing of what is in them."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file, and the folders above it; one that is there is replaced in one step. Raises OSError."""
    # Beside the target, so that the rename stays on one disk; closed before it, which Windows asks for.
    partial = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
