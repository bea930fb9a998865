"""Each place of the engine's code that allocates a tensor fails once, and what that leaves behind.

Used by `tests/faults/faults.py sites`, tests/unit/test_allocation_faults.py and tests/gpu/test_allocation_faults.py.
"""

from __future__ import annotations

import random
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from higgs_tts.engine import EMBEDDED, Adapter, Engine, EngineConfig, HiggsError, Listener, SamplingParams, Voice
from higgs_tts.engine.tools.tiny import write_tiny
from higgs_tts.tests.peft_files import write_adapter
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ENGINE = str(Path(__file__).resolve().parents[1] / "engine")
PARAMS = SamplingParams(seed=2, max_frames=2, retries=0, chunk_seconds=1.0)
TEXTS = "The first sentence is here. The second one is here. The third one is there."
VOICE = Voice(torch.arange(240).view(30, 8), "These are the words of the clip.")
PARTS = ("open", "speak", "batch", "clip", "lora", "lora int8", "int8", "int4", "trim", "close")
ERRORS = (HiggsError, torch.OutOfMemoryError)  # of which terminal, nodes and server make a sentence with a remedy


class Allocations(TorchDispatchMode):
    """Notes this thread's allocations in the engine's code, and fails the first one at the place `fails_at`.

    places: FILE:LINE of the innermost frame in engine/, in the order of their first allocation.
    """

    def __init__(self, fails_at: str = ""):
        super().__init__()
        self.places: dict[str, None] = {}
        self._fails_at, self.has_failed = fails_at, False
        self._made: list[tuple[StorageWeakRef, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = set() if func is torch.ops.aten.lift_fresh.default else set(_storages((args, kwargs)))
        made = {data: storage for data, storage in _storages(result).items() if data not in given}
        if made and (place := _place()):
            self.places[place] = None
            if place == self._fails_at and not self.has_failed:
                self.has_failed = True
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate.")
            self._made += [(StorageWeakRef(storage), storage.nbytes()) for storage in made.values()]
        return result

    def live_bytes(self) -> int:
        """Return the bytes of its allocations that are still there."""
        return sum(size for storage, size in self._made if not storage.expired())


def _storages(values: object) -> dict[int, torch.UntypedStorage]:
    """Return the storages of all tensors in nested values, by address. Those without bytes do not count."""
    tensors = [one for one in tree_leaves(values) if isinstance(one, torch.Tensor) and one.device.type != "meta"]
    storages = [tensor.untyped_storage() for tensor in tensors]
    return {storage.data_ptr(): storage for storage in storages if storage.nbytes()}


def _place() -> str:
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "capture_begin":  # torch's own, provided for in `capture`
        if frame.f_code.co_filename.startswith(ENGINE):
            return f"{frame.f_code.co_filename[len(ENGINE) + 1 :]}:{frame.f_lineno}".replace("\\", "/")
        frame = frame.f_back
    return ""


@dataclass(frozen=True)
class Part:
    """config: of the engine. before(engine): what has succeeded. act(engine): what fails; returns codes or None."""

    config: EngineConfig
    act: Callable[[Engine], torch.Tensor | None]
    before: Callable[[Engine], object] = Engine.open


def parts(folder: Path, device: str = "cpu") -> dict[str, Part]:
    """Return PARTS. folder: for a tiny checkpoint and an adapter."""
    tiny = write_tiny(folder / "tiny", "v3")
    write_adapter(EMBEDDED, folder / "adapter", "plain", by_hand=True)
    config = EngineConfig(str(tiny), device=device, context=512)
    lora = replace(config, model=str(EMBEDDED), adapters=(Adapter(folder / "adapter"),))
    int8, int4 = (replace(config, model=str(EMBEDDED), dtype=kind) for kind in ("int8", "int4"))
    clip = torch.sin(torch.arange(24000) * 0.1) * 0.5

    def speak(engine: Engine) -> torch.Tensor:
        return engine.speak("Hello.", VOICE, PARAMS, listener=Listener(on_audio=lambda _: None)).codes

    def batch(engine: Engine) -> torch.Tensor:
        return engine.speak(TEXTS, params=PARAMS).codes

    def trimmed(engine: Engine) -> torch.Tensor:
        engine.trim()
        return speak(engine)

    def spoken(engine: Engine) -> None:
        engine.open()
        speak(engine)

    def nothing(engine: Engine) -> None:
        """Leave it closed."""

    return {
        "open": Part(config, Engine.open, nothing),
        "speak": Part(config, speak),
        "batch": Part(config, batch),
        "clip": Part(config, lambda engine: engine.encode_voice(clip, 22050).codes),
        "lora": Part(lora, Engine.open, nothing),
        "lora int8": Part(replace(lora, dtype="int8"), Engine.open, nothing),
        "int8": Part(int8, Engine.open, nothing),
        "int4": Part(int4, Engine.open, nothing),
        "trim": Part(config, trimmed, spoken),
        "close": Part(config, Engine.close, spoken),
    }


class Trials:
    """Runs a part undisturbed, then with one fault after the other."""

    def __init__(self, part: Part):
        self._part, allocations = part, Allocations()
        engine = self._engine()
        with allocations:
            self._codes = part.act(engine)
        self.places = list(allocations.places)
        self._keeps = allocations.live_bytes() - _size(self._codes)
        self._spoken = _speak(engine)
        engine.close()

    def _engine(self) -> Engine:
        engine = Engine(self._part.config)
        self._part.before(engine)
        return engine

    def defects(self, fault: Allocations) -> tuple[list[str], int]:
        """Return what is wrong after a fault, and the bytes that leaked."""
        found: list[str] = []
        engine, threads = self._engine(), threading.active_count()
        codes, error = self._act(engine, fault, found)
        if not fault.has_failed:
            found.append("the place was not reached")
        leaked = fault.live_bytes() - _size(codes) - (self._keeps if engine.opened else 0)
        if error is None and engine.device.type == "cpu" and not _same(codes, self._codes):  # a GPU's rows may be fewer
            found.append("it succeeds with other codes")
        if threading.active_count() > threads:
            found.append("a thread stays")
        if not _same(self._part.act(engine), self._codes):
            found.append("the next call has other codes")
        if not _same(_speak(engine), self._spoken):
            found.append("later speech has other codes")
        with ThreadPoolExecutor(1) as other:
            if not other.submit(engine.trim).result():
                found.append("the engine stays locked")
        engine.close()
        leaked = max(0, leaked, fault.live_bytes() - _size(codes))
        if leaked:
            found.append(f"{leaked:,} bytes stay, while the error is kept")
        return found, leaked

    def _act(
        self, engine: Engine, fault: Allocations, found: list[str]
    ) -> tuple[torch.Tensor | None, BaseException | None]:
        try:
            with fault:
                return self._part.act(engine), None
        except ERRORS as error:
            if isinstance(error, HiggsError) and (len(str(error)) > 1000 or "\n" in str(error)):
                found.append(f"it ends with {str(error)!r}")
            traceback.clear_frames(error.__traceback__)  # as the nodes do, for ComfyUI keeps the error
            return None, error
        except Exception as error:
            found.append(f"it ends with {type(error).__name__}: {error}")
            return None, error


def _speak(engine: Engine) -> torch.Tensor:
    engine.open()
    return engine.speak("And then?", params=PARAMS).codes


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other if one is None or other is None else torch.equal(one, other)


def _size(codes: torch.Tensor | None) -> int:
    return 0 if codes is None else codes.nbytes


def run(name: str, part: Part, most: int, seed: int) -> tuple[dict, list[str]]:
    """Fail all places of a part, or `most` chosen by the seed. Returns a row of results, and what fails."""
    trials, failing, stay = Trials(part), {}, 0
    places = trials.places
    if most:
        places = random.Random(f"{seed} {name}").sample(places, min(most, len(places)))
    for place in places:
        found, leaked = trials.defects(Allocations(place))
        stay += leaked
        if found:
            failing[place] = found
    row = {"part": name, "points": len(places), "clean": len(places) - len(failing), "leaked_bytes": stay}
    return row, [f"{name}, {place}: {', '.join(found)}" for place, found in failing.items()]
