"""Optional on-disk cache of compiled kernels, keyed by source, options and compiler.

Each entry is a file: SHA-256 of the cubin, then the cubin. A damaged entry counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import sys
import uuid

log = logging.getLogger("higgs_tts")

MOST = 64  # entries kept, newest first; a model needs four per GPU
_DIGEST = hashlib.sha256().digest_size


def cache_folder() -> pathlib.Path | None:
    """Return the pack's folder in the user's cache folder. None if there is no home folder."""
    named = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    try:
        return pathlib.Path(named or pathlib.Path.home() / ".cache") / "higgs_tts"
    except RuntimeError:  # no home folder
        return None


def folder() -> pathlib.Path | None:
    """Return the folder of the entries. None if there is no home folder."""
    place = cache_folder()
    return place / "cubins" if place else None


def key_of(*parts: str) -> str:
    """Return an entry's key: a hash of everything that affects the compiled code."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load(key: str) -> bytes | None:
    """Return the cubin for a key, or None if it is missing or damaged."""
    place = folder()
    try:
        data = (place / f"{key}.cubin").read_bytes() if place else b""
    except OSError:
        return None
    digest, cubin = data[:_DIGEST], data[_DIGEST:]
    return cubin if cubin and hashlib.sha256(cubin).digest() == digest else None


def save(key: str, cubin: bytes) -> None:
    """Store a cubin atomically for other processes. A failure goes to the debug log."""
    place = folder()
    if place is None:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        # Not by mkstemp: in a folder that one may not write to, Python tries two billion names on Windows.
        partial = place / f"{uuid.uuid4().hex}.part"
        try:
            partial.write_bytes(hashlib.sha256(cubin).digest() + cubin)
            os.replace(partial, place / f"{key}.cubin")
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        _prune(place)
    except OSError as error:
        log.debug("Higgs TTS: compiled kernels could not be cached in %s (%s).", place, error)


def _prune(place: pathlib.Path) -> None:
    entries = sorted(place.glob("*.cubin"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[MOST:]:
        with contextlib.suppress(OSError):  # another process has deleted it or has it open
            path.unlink()
