"""Lazy imports of optional libraries."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from typing import Any

from .errors import HiggsError

_REMEDIES = {
    "transformers": "Install transformers 4.50.3 or newer",
    "gguf": "Use the Q8_0 file of the model, or install gguf",
}
_REPORTED = tuple("torch transformers tokenizers huggingface_hub safetensors numpy soundfile torchaudio".split())
# A library built for another torch may raise any of these at import.
_BROKEN = (ImportError, AttributeError, RuntimeError, OSError)


def import_optional(module: str, name: str) -> Any:
    """Import `name` from a library's module. Raises HiggsError with the cause and an install hint if that fails."""
    try:
        return getattr(importlib.import_module(module), name)
    except _BROKEN as error:
        library = module.partition(".")[0]
        if misfit := _torchaudio_misfit() if library == "transformers" else "":
            raise HiggsError(f"A clip cannot be transcribed: {misfit}") from error
        remedy = _REMEDIES.get(library, f"Install {library}")
        raise HiggsError(
            f"{name} of {library} cannot be used: {_reason(error)}. {remedy} in the Python that runs this pack."
        ) from error


def installed_version(library: str) -> str:
    """Return a library's version from its metadata without importing it, or empty if it is not installed."""
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return ""


def versions() -> dict[str, str]:
    """Return name -> version for Python and the libraries in use. Empty if a library is not installed."""
    return {"python": platform.python_version(), **{name: installed_version(name) for name in _REPORTED}}


def _torchaudio_misfit() -> str:
    """Return the fix for an installed torchaudio that cannot be imported, or empty if there is no such problem.

    transformers 5 imports an installed torchaudio along with its models. A torchaudio that does not match torch (its
    last release is 2.11) therefore breaks Whisper.
    """
    if not (version := installed_version("torchaudio")):
        return ""
    try:
        importlib.import_module("torchaudio")
    except _BROKEN:
        return (
            f"the installed torchaudio {version} does not fit torch {installed_version('torch')}, so transformers "
            "cannot load. Uninstall it (pip uninstall torchaudio); this pack does not need it."
        )
    return ""


def _reason(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).partition("\n")[0].rstrip(".")
