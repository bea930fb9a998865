"""HiggsPatcher: lets ComfyUI's memory management load and unload a whole engine."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from comfy.model_patcher import ModelPatcher

from ...engine import Engine

log = logging.getLogger("higgs_tts")


class HiggsModel(torch.nn.Module):
    """Stands in for the model. Has no parameters, so ComfyUI's code for loading and patching finds none to move."""

    def __init__(self, engine: Engine):
        super().__init__()
        self.engine = engine
        self.label = ""  # name of the checkpoint, for the info output
        self.warnings: tuple[str, ...] = ()  # from the loader, for the info output
        self.files: list[list] = []  # sizes and times of the files it is loaded from
        # ComfyUI drops evicted outputs without a call. The weights are freed with the last reference.
        weakref.finalize(self, close_quietly, engine).atexit = False


class HiggsPatcher(ModelPatcher):
    """Keeps an engine on one device: CUDA graphs hold the addresses of its tensors, so none may move alone.

    Unloading has two steps: first cache and graphs, then everything. ComfyUI calls every method but `partially_load`
    from places where an exception ends its worker thread for good. It unloads models by their places in a list, which a
    model leaves when Python collects it. So no collection may come in between; an error's traceback keeps its model as
    garbage.
    """

    model: HiggsModel
    others: tuple[HiggsPatcher, ...] = ()  # of engines on other devices that speak together with this one

    @property
    def engine(self) -> Engine:
        return self.model.engine

    def loaded_size(self) -> int:
        """ComfyUI asks for it when it makes the list."""
        gc.freeze()  # sets back the counts of allocations that a collection follows
        gc.unfreeze()
        return self.engine.held_bytes

    def current_loaded_device(self) -> torch.device:
        return self.load_device if self.engine.opened else self.offload_device

    def partially_load(self, *args: object, **kwargs: object) -> int:
        """Open the engine whatever the budget, and return the bytes newly taken. May raise, since a node is running.

        What `partially_unload` freed comes back with the next speech. ComfyUI has already freed memory for it, because
        `loaded_size` does not count it.
        """
        held = self.engine.held_bytes
        try:
            self.engine.open()
        finally:
            if not self.engine.opened:
                close_quietly(self.engine)
        return self.engine.held_bytes - held

    def partially_unload(self, *args: object, **kwargs: object) -> int:
        """Free cache and graphs, and return the bytes. If ComfyUI needs more, it calls detach(True) next."""
        return trim_quietly(self.engine)

    def detach(self, unpatch_all: bool = True, *args: object, **kwargs: object) -> HiggsModel:
        """Close the engine, but only for True: ComfyUI passes False at the start of every load of a loaded model."""
        if unpatch_all:
            close_quietly(self.engine)
        with _logged("Higgs TTS: a callback from another node pack failed while the model was being unloaded."):
            super().detach(unpatch_all, *args, **kwargs)
        return self.model


@contextmanager
def _logged(message: str) -> Iterator[None]:
    """Log an exception instead of raising it, which would stop ComfyUI's worker for good."""
    try:
        yield
    except Exception:
        log.exception(message)


def close_quietly(engine: Engine) -> None:
    with _logged("Higgs TTS could not free all of its memory. Restart ComfyUI if memory stays in use."):
        engine.close()


def trim_quietly(engine: Engine) -> int:
    """Free cache and graphs, and return the bytes. Returns 0 on failure, and ComfyUI then unloads everything."""
    with _logged("Higgs TTS could not free its cache, so its weights were freed instead."):
        return engine.trim()
    return 0


def make_patcher(engine: Engine) -> HiggsPatcher:
    """Return a patcher for `engine`. Allocates no device memory."""
    return HiggsPatcher(HiggsModel(engine), engine.device, torch.device("cpu"), size=engine.planned_bytes)
