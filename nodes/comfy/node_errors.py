"""Early ends of a node: an error that begins with the node's name, or the user's stop."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import comfy.model_management as mm
import torch

from ...engine import HiggsError
from . import exit_guard


@contextmanager
def node_errors(node: str) -> Iterator[None]:
    """Context of every node's work. Errors begin with its name, and the process does not exit meanwhile.

    Out of memory keeps its type, on which ComfyUI unloads all models.
    """
    with exit_guard.node_work():
        try:
            yield
        except HiggsError as error:
            raise HiggsError(f"{node}: {error}") from error
        except torch.cuda.OutOfMemoryError as error:
            traceback.clear_frames(error.__traceback__)  # their tensors would outlive the unloading that follows
            reason = str(error).partition("\n")[0]
            raise torch.cuda.OutOfMemoryError(
                f"{node}: out of memory. Choose dtype int8 or a smaller context in Higgs Load Model, or close other "
                f"programs that use the device. ({reason})"
            ) from error


def refusal(node: str, check: Callable[[], object]) -> bool | str:
    """Return True, or why a check before the run refuses a node's inputs, for `validate_inputs`."""
    try:
        check()
    except HiggsError as error:
        return f"{node}: {error}"
    return True


def refuse(node: str, check: Callable[[], object]) -> bool:
    """Return True, or raise such a sentence: ComfyUI repeats a returned one for each input that is validated."""
    if isinstance(refused := refusal(node, check), str):
        raise HiggsError(refused)
    return True


def check_interrupt() -> None:
    """Raise ComfyUI's own exception if the user pressed stop. Blocks forever if the process exits."""
    exit_guard.stop_if_exiting()
    mm.throw_exception_if_processing_interrupted()


def is_interrupted() -> bool:
    """True if the user pressed stop or the process exits. Leaves the request set, so every thread sees it."""
    return mm.processing_interrupted() or exit_guard.is_exiting()
