"""Digest of a checkpoint's contents, independent of its path. Samples the files, since reading them takes seconds."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..core.config import EngineConfig
from .adapter_files import adapter_files
from .load import Checkpoint

_READ = ("*.json", "*.safetensors", "*.pth", "*.bin", "*.gguf")
_SAMPLES, _BYTES = 64, 4096  # samples per file, bytes per sample; retrained weights differ everywhere


def fingerprint_of(checkpoint: Checkpoint, config: EngineConfig) -> str:
    """Return a fingerprint of the weights, their adapters and their precision. Copying the files does not change it."""
    digest = hashlib.sha256(config.dtype.encode())
    for place, strength in [
        *((folder, 1.0) for folder in dict.fromkeys((checkpoint.folder, checkpoint.codec_folder))),
        *(
            (path, adapter.strength)
            for adapter in config.adapters
            for path in adapter_files(Path(adapter.path).expanduser())
        ),
    ]:
        digest.update(f"\n{strength}\n".encode())
        files = [place] if place.is_file() else sorted({path for kind in _READ for path in place.glob(kind)})
        for path in files:
            _add(digest, path)
    return digest.hexdigest()


def _add(digest, path: Path):
    size = path.stat().st_size
    digest.update(f"{path.name} {size}\n".encode())
    with path.open("rb") as file:
        if size <= _SAMPLES * _BYTES:
            digest.update(file.read())
            return
        for number in range(_SAMPLES):
            file.seek(number * (size - _BYTES) // (_SAMPLES - 1))
            digest.update(file.read(_BYTES))
