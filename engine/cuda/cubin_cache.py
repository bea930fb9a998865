"""Compiled kernels on disk, found by what they were compiled from.

An entry is a file of its own: SHA-256 of the cubin, then the cubin. One that is damaged counts as missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import sys
import tempfile

log = logging.getLogger("higgs_tts")

_MOST = 64  # entries that are kept, those written last; a model needs four on a card
_DIGEST = hashlib.sha256().digest_size


def folder() -> pathlib.Path | None:
    """Where entries lie: in the user's cache folder. None where there is no such place."""
    named = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    try:
        return pathlib.Path(named or pathlib.Path.home() / ".cache") / "higgs_tts" / "cubins"
    except RuntimeError:  # no home folder
        return None


def key_of(*parts: str) -> str:
    """The name of an entry: all that decides what is compiled, and by what."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load(key: str) -> bytes | None:
    """The cubin of that name, or None where there is none or it is damaged."""
    place = folder()
    try:
        data = (place / f"{key}.cubin").read_bytes() if place else b""
    except OSError:
        return None
    digest, cubin = data[:_DIGEST], data[_DIGEST:]
    return cubin if cubin and hashlib.sha256(cubin).digest() == digest else None


def save(key: str, cubin: bytes) -> None:
    """Keeps a cubin for other processes, whole or not at all. Where that cannot be done, the debug log says why."""
    place = folder()
    if place is None:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=place, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(cubin).digest() + cubin)
            os.replace(temporary, place / f"{key}.cubin")
        except OSError:
            os.unlink(temporary)
            raise
        _prune(place)
    except OSError as error:
        log.debug("Higgs TTS: compiled kernels could not be cached in %s (%s).", place, error)


def _prune(place: pathlib.Path) -> None:
    entries = sorted(place.glob("*.cubin"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in entries[_MOST:]:
        with contextlib.suppress(OSError):  # another process was faster, or has it open
            path.unlink()
