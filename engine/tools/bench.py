"""Measure how close the decode step is to the device's memory bandwidth."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from ..checkpoint.embedded import EMBEDDED
from ..core.config import FRAME_RATE, QUANTIZED, VERSION, EngineConfig, SamplingParams
from ..core.devices import device_of
from ..core.errors import HiggsError
from ..core.sequence import Sequence
from ..decode.model_runner import ModelRunner
from ..decode.state import DecodeState
from ..engines.engine import Engine
from ..engines.loaded_model import LoadedModel
from ..talker import Talker
from .published import PUBLISHED, SIZES, fill, write_hollow

_SLOTS = 1024  # of the cache
CONTEXT = 500  # filled cache positions when a step is timed in the short form: 20 s of speech
_STEPS = 100  # per round on a GPU
PATIENCE = 2.0  # longest round elsewhere, in seconds
_ROUNDS = 3
READ_BYTES = {"cuda": 4 << 30, "cpu": 256 << 20}
_SPARE = 1 << 30  # bytes of device memory left for graphs, libraries and other processes


@dataclass(frozen=True)
class Row:
    who: str
    family: str
    dtype: str
    batch: int
    context: int  # filled cache positions, mean over the timed steps
    ms_per_step: float
    floor_ms: float  # time to read the step's bytes at the measured rate
    how: str = ""  # the decoder, in plain words

    @property
    def percent_of_floor(self) -> float:
        return 100 * self.floor_ms / self.ms_per_step

    @property
    def frames_per_s(self) -> float:
        return self.batch * 1000 / self.ms_per_step

    @property
    def audio_s_per_s(self) -> float:
        return self.frames_per_s / FRAME_RATE

    def as_dict(self) -> dict:
        derived = {name: getattr(self, name) for name in ("percent_of_floor", "frames_per_s", "audio_s_per_s")}
        values = asdict(self) | derived
        return {name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in values.items()}


@torch.inference_mode()
def bench(config: EngineConfig) -> dict:
    """Time a single-row step of a checkpoint. The default is the published shapes, or on a CPU the embedded model.

    On a GPU "auto" times bf16 and every quantised format. Returns plain values for JSON: version, device, torch,
    read_tb_s, rows (Row.as_dict) and skipped (sentences). Everything is freed at the end. Raises HiggsError if the
    folder holds no usable checkpoint or the device is missing.
    """
    rows, skipped, read = [], [], 0.0
    if not config.model and device_of(config.device).type == "cpu":
        config = replace(config, model=str(EMBEDDED))
        skipped.append("the published shapes would take minutes on a CPU. Use --model to time your own checkpoint.")
    for family in ("",) if config.model else PUBLISHED:
        with contextlib.ExitStack() as stack:
            folder = config.model
            if family:
                folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
                write_hollow(Path(folder), family)
            engine = Engine(replace(config, model=folder, context=_SLOTS))
            read = read or read_rate(engine.device)
            who = f"{family} {SIZES[family]}, random weights" if family else Path(folder).resolve().name
            several = config.dtype == "auto" and engine.device.type == "cuda"
            for dtype in ("bf16", *QUANTIZED) if several else (engine.config.dtype,):
                try:
                    engine = Engine(replace(engine.config, dtype=dtype))
                except HiggsError as error:  # widths that cannot be quantised
                    skipped.append(str(error))
                    continue
                if reason := _unfit(engine):
                    skipped.append(reason)
                else:
                    rows.append(_time_one(engine, who, read, hollow=bool(family)))
    gpu = engine.device.type == "cuda"
    return {
        "version": VERSION,
        "device": torch.cuda.get_device_name(engine.device) if gpu else engine.device.type,
        "torch": torch.__version__,
        "read_tb_s": float(f"{read / 1e12:.4g}"),
        "rows": [row.as_dict() for row in rows],
        "skipped": skipped,
    }


def as_text(result: dict) -> str:
    lines = [f"{result['device']}, torch {result['torch']}: memory reads at {1000 * result['read_tb_s']:,.1f} GB/s"]
    if result["rows"]:
        heads = f"{'weights':<10}{'floor ms':>9}{'ms':>9}{'of floor':>10}{'frames/s':>10}{'real time':>11}"
        lines.append(f"{'one step':<28}{heads}  by")
    for row in result["rows"]:
        lines.append(
            f"{row['who'][:27]:<28}{row['dtype']:<10}{row['floor_ms']:>9.3f}{row['ms_per_step']:>9.3f}"
            f"{row['percent_of_floor']:>9.0f}%{row['frames_per_s']:>10.1f}{row['audio_s_per_s']:>10.1f}x  {row['how']}"
        )
    return "\n".join([*lines, *(f"not timed: {reason}" for reason in result["skipped"])])


def _time_one(engine: Engine, who: str, read: float, hollow: bool) -> Row:
    with opened(engine, hollow) as loaded:
        ms = time_step(loaded.runner(), CONTEXT)  # no name here may hold the runner, which is freed next
        floor = 1000 * step_bytes(loaded.talker, CONTEXT) / read
        dtype = engine.config.weights or str(engine.dtype).removeprefix("torch.")
        return Row(who, engine.family, dtype, 1, CONTEXT, ms, floor, loaded.runner().describe())


@contextlib.contextmanager
def opened(engine: Engine, hollow: bool = False) -> Iterator[LoadedModel]:
    """Open an engine, yield its model, and free it. `hollow`: a checkpoint from `write_hollow`, to be filled."""
    on_device = torch.cuda.device(engine.device) if engine.device.type == "cuda" else contextlib.nullcontext()
    with on_device:
        context = engine.planner.context
        loaded = LoadedModel(engine.checkpoint, engine.config, context, engine.device, engine.dtype, engine.aligned)
        try:
            if hollow:
                loaded.trim()  # whatever was computed from the empty weights
                fill(loaded.talker)
            yield loaded
        finally:
            loaded.close()


def read_rate(device: torch.device) -> float:
    """Return the device's memory read rate in bytes per second. Timed with a reduction, which writes almost nothing."""
    size = READ_BYTES[device.type]
    if device.type == "cuda":
        size = min(size, torch.cuda.mem_get_info(device)[0] // 3)
    buffer = torch.empty(size // 4, dtype=torch.int32, device=device).random_()  # zeros could flatter the memory
    rounds = [_seconds(buffer.max, 4, device) / 4 for _ in range(6)]
    del buffer
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return (size // 4 * 4) / statistics.median(rounds[1:])


def step_bytes(talker: Talker, filled: int, rows: int = 1) -> int:
    """Return the bytes a step of `rows` rows must read: all weights it uses, once, and each row's filled cache.

    Embeddings are not counted: only eight rows of them are read.
    """
    config = talker.config
    weights = [talker.norm, talker.head_codes]
    for layer in talker.layers:
        code = layer.code
        weights += [layer.qkv, layer.out, code.attn_norm, code.mlp_norm, code.gate_up, code.down]
        weights += [] if layer.qk_norm is None else [layer.qk_norm]
    cache = 2 * config.layers * config.kv_heads * config.head_dim * filled * rows
    return sum(weight.nbytes for weight in weights) + cache * talker.dtype.itemsize


def time_step(runner: ModelRunner, context: int, steps: int | None = None) -> float:
    """Return milliseconds per step, as the median of three rounds. `context`: mean filled positions of rows and steps.

    A batch's rows are spread from a fifth of `context` to nine fifths, as under continuous batching.
    """
    state = runner.state
    place(state, context, 0)
    runner.step()
    if steps is None:
        most = _STEPS if state.device.type == "cuda" else int(PATIENCE / _seconds(runner.step, 1, state.device))
        steps = max(3, min(_STEPS, most))
    rounds = []
    for _ in range(_ROUNDS + 1):
        place(state, context, steps)
        rounds.append(_seconds(runner.step, steps, state.device) / steps)
    return 1000 * statistics.median(rounds[1:])


def place(state: DecodeState, context: int, steps: int) -> None:
    """Make every row live after a noise prompt, so that the mean context over `steps` steps is that of `time_step`."""
    for b in range(state.batch):
        share = 1.0 if state.batch == 1 else 0.2 + 1.6 * b / (state.batch - 1)
        filled = max(1, round(context * share) - steps // 2)
        assert filled + steps <= state.max_seq_len, f"{filled} + {steps} of {state.max_seq_len} positions"
        state.start_row(b, Sequence([0] * filled, params=SamplingParams(max_frames=8192), index=b))
    for buffer in (state.logits, state.cache.keys, state.cache.values):
        buffer.normal_()


def _seconds(run: Callable[[], object], times: int, device: torch.device) -> float:
    """Return the device's time for `times` calls, in seconds."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(times):
            run()
        return time.perf_counter() - began
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began.record()
    for _ in range(times):
        run()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1000


def _unfit(engine: Engine) -> str:
    """Return why this engine is not timed here. Empty if it can be."""
    if engine.device.type != "cuda":
        return ""
    free, needs = torch.cuda.mem_get_info(engine.device)[0], engine.planned_bytes + _SPARE
    return f"{engine.family} needs {needs / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free." if needs > free else ""
