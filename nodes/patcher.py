"""Where an engine lives and when it leaves: the only file that knows ComfyUI's memory management. No audio, no text."""

from __future__ import annotations

import atexit
import logging
import threading
import traceback
import weakref
from contextlib import contextmanager

import comfy.model_management as mm
import torch
from comfy.model_patcher import ModelPatcher
from server import PromptServer

from ..engine import GRAPHS, Engine, HiggsError

log = logging.getLogger("higgs_tts")
EXIT_SECONDS = 10  # how long the end of the process waits for a node

# ComfyUI ends while its worker still computes, and Python then stops that thread where it is. Inside torch this aborts
# the process. So our nodes take turns with the exit: once it has the turn, they wait for it for good.
_turn = threading.Semaphore()
_is_leaving = threading.Event()
_was_serving = False  # when the node that is at work began


def _is_serving() -> bool:
    server = getattr(PromptServer, "instance", None)
    return server is not None and server.loop.is_running()


def _is_ending() -> bool:
    return _is_leaving.is_set() or (_was_serving and not _is_serving())


@atexit.register
def take_last_turn() -> None:
    """Stop the node that is at work, and all that follow, at a point where they can be left. For the process's end."""
    _is_leaving.set()
    _turn.acquire(timeout=EXIT_SECONDS)


def _yield_to_exit() -> None:
    """Give the turn to the end of the process if it has come, and never return then."""
    if _is_ending():
        _turn.release()
        threading.Event().wait()


class HiggsModel(torch.nn.Module):
    """What ComfyUI takes for the model: no parameter of its own, so none of ComfyUI's movers has anything to move."""

    def __init__(self, engine: Engine):
        super().__init__()
        self.engine = engine
        self.label = ""  # what the checkpoint is called, for the info output
        self.notes: tuple[str, ...] = ()  # what the loader has to say, for the same
        # Evicted outputs are dropped without a word; whoever held this last, the weights leave with it.
        weakref.finalize(self, close_quietly, engine).atexit = False


class HiggsPatcher(ModelPatcher):
    """Keeps an engine on one device: graphs hold its addresses, so nothing may move piecewise.

    It leaves in two steps: cache and captures while the weights stay, then everything. ComfyUI calls every method but
    `partially_load` from places where an exception ends its worker thread for good.
    """

    @property
    def engine(self) -> Engine:
        return self.model.engine

    def is_dynamic(self) -> bool:
        return False

    def loaded_size(self) -> int:
        return self.engine.held_bytes

    def current_loaded_device(self) -> torch.device:
        return self.load_device if self.engine.opened else self.offload_device

    def partially_load(self, device_to, extra_memory=0, force_patch_weights=False) -> int:
        """Open the engine whatever the budget, and return the bytes newly taken. May raise: a node is running.

        What `partially_unload` gave up comes back with the next speech. ComfyUI has made room for it by now, because
        `loaded_size` does not count it.
        """
        held = self.engine.held_bytes
        try:
            self.engine.open()
        finally:
            if not self.engine.opened:
                close_quietly(self.engine)
        return self.engine.held_bytes - held

    def partially_unload(self, device_to, memory_to_free=0, force_patch_weights=False) -> int:
        """Give up cache and captures, and return the bytes. ComfyUI asks for all, by detach(True), if they are few."""
        return trim_quietly(self.engine)

    def detach(self, unpatch_all=True):
        """Close the engine, but only for True: False is said at the start of every load of a model already loaded."""
        if unpatch_all:
            close_quietly(self.engine)
        return self.model

    def load(self, *args, **kwargs) -> None:
        """Nothing: weights come with `partially_load`."""

    def patch_model(self, *args, **kwargs):
        return self.model

    def unpatch_model(self, *args, **kwargs) -> None:
        """Nothing: weights go with `detach`."""


def close_quietly(engine: Engine) -> None:
    """Close `engine` and never raise: an exception here would stop ComfyUI's worker for good."""
    try:
        engine.close()
    except Exception:
        log.exception("Higgs TTS could not free all of its memory. Restart ComfyUI if memory stays in use.")


def trim_quietly(engine: Engine) -> int:
    """Bytes that giving up cache and captures freed; 0 when that failed, upon which ComfyUI takes everything."""
    try:
        return engine.trim()
    except Exception:
        log.exception("Higgs TTS could not free its cache. Its weights are freed instead.")
        return 0


def make_patcher(engine: Engine) -> HiggsPatcher:
    """`engine` in ComfyUI's hands. Takes no memory on the device."""
    return HiggsPatcher(HiggsModel(engine), engine.device, torch.device("cpu"), size=engine.planned_bytes)


# One patcher for all loaders that ask for the same; it lives as long as a loader's output or a running node holds it.
_patchers: weakref.WeakValueDictionary[tuple, HiggsPatcher] = weakref.WeakValueDictionary()


def share_patcher(engine: Engine, stamp: list[list], label: str = "", note: str = "") -> HiggsPatcher:
    """The patcher of an equal engine over the same files, if one is alive; else one for `engine`, not yet open.

    label, note: for the info output of the nodes that use it.
    """
    files = tuple(map(tuple, stamp))
    key = (engine.checkpoint.folder.resolve(), files, engine.device, engine.dtype, engine.context, engine.config.runner)
    patcher = _patchers.get(key)
    if patcher is None:
        patcher = _patchers[key] = make_patcher(engine)
    patcher.model.label, patcher.model.notes = label, (note,) if note else ()
    return patcher


def load(patcher: HiggsPatcher) -> Engine:
    """The open engine, with other models moved out of its way. Once per node: each call has its price for others."""
    mm.load_models_gpu([patcher])
    return patcher.engine


def make_room(size: int, device: torch.device) -> None:
    """Free `size` bytes and what running takes besides. Like ComfyUI's own loads, it leaves the CPU alone."""
    if device.type != "cpu":
        mm.free_memory(size + mm.minimum_inference_memory(), device)


def device_names() -> list[str]:
    """What the loader offers as devices. Asks no device anything: torch has counted them before packs are loaded."""
    if mm.get_torch_device().type != "cuda":
        return ["auto", "cpu"]
    return ["auto", *(f"cuda:{index}" for index in range(torch.cuda.device_count())), "cpu"]


def device_of(name: str) -> tuple[str, str]:
    """(device, warning) of a choice. The device has its index: one without is never asked to leave.

    "auto" is the CPU where there is no CUDA. A device that is not here, saved on another machine, becomes "auto" with a
    warning.
    """
    device = mm.get_torch_device()
    usual = str(device) if device.type == "cuda" else "cpu"
    if name == "auto":
        return usual, ""
    if name in device_names():
        return name, ""
    note = f"The device {name} is not on this machine, so {usual} is used. Choose another one in Higgs Load Model."
    log.warning("Higgs TTS: %s", note)
    return usual, note


def runner_of(graphs: str) -> str:
    """The engine's runner behind the loader's choice. auto also heeds how ComfyUI was started (0.33 and newer)."""
    if graphs == "auto" and getattr(mm.args, "disable_cuda_graphs", False):
        return "eager"
    return GRAPHS[graphs]


def check_interrupt() -> None:
    """Raise ComfyUI's own exception if the user pressed stop. Where ComfyUI itself ends, the node ends here."""
    _yield_to_exit()
    mm.throw_exception_if_processing_interrupted()


def is_interrupted() -> bool:
    """Whether the user pressed stop or ends ComfyUI, which waits for threads that download.

    Unlike the above it leaves the request standing, so every thread sees it.
    """
    return mm.processing_interrupted() or _is_ending()


@contextmanager
def told_by(node: str):
    """Errors raised inside begin with the node's name; out of memory becomes a sentence, and ComfyUI still frees.

    Every node does its work inside one of these.
    """
    global _was_serving
    _turn.acquire()
    _was_serving = _is_serving()
    try:
        yield
    except HiggsError as error:
        raise HiggsError(f"{node}: {error}") from error
    except torch.cuda.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)  # their tensors would outlive the unloading that follows
        reason = str(error).partition("\n")[0]
        raise torch.cuda.OutOfMemoryError(
            f"{node}: the device is out of memory. Choose a smaller context in Higgs Load Model, or close other "
            f"programs that use the device. ({reason})"
        ) from error
    finally:
        _yield_to_exit()
        _turn.release()
