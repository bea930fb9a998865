"""Imports what only some work needs, when it is needed, and says in one sentence what is missing."""

import importlib

from .errors import HiggsError

_REMEDIES = {
    "torchaudio": "Install the torchaudio that belongs to your torch",
    "transformers": "Install transformers 4.50.3 or newer, and the torchaudio that belongs to your torch,",
}


def borrow(module: str, name: str):
    """`name` from a library's module. Raises HiggsError with the cause where the library cannot be imported.

    RuntimeError and OSError are what a torchaudio built for another torch raises, also from inside transformers.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, RuntimeError, OSError) as error:
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        library = module.partition(".")[0]
        reason = (str(cause).strip() or type(cause).__name__).partition("\n")[0].rstrip(".")
        remedy = _REMEDIES.get(library, f"Install {library}")
        raise HiggsError(
            f"{library} has no usable {name} here: {reason}. {remedy} into the Python that runs this."
        ) from error
