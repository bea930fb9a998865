"""Time and memory of training steps on random codes."""

from __future__ import annotations

import statistics
import time

import torch

from ..core.config import EngineConfig
from ..engines.engine import Engine
from ..finetune.network import Network
from ..finetune.rows import IGNORED, TrainingRow
from .published import fill

_WARM_UPS = 2
_TOKENS = 256  # ids of text


def time_training(config: EngineConfig, rows: int, positions: int, steps: int, rank: int = 16) -> dict[str, object]:
    """Time steps of `rows` x `positions`, each a tenth text. The weights are random, whatever the checkpoint holds.

    Returns "ms" (the median), "peak_gib" of torch's allocations, "held_gib" before the first step, and "note".
    """
    engine = Engine(config)
    generator = torch.Generator().manual_seed(0)
    group = [_row(positions, engine.checkpoint.config.codebooks, generator) for _ in range(rows)]
    is_gpu = engine.device.type == "cuda"
    with torch.inference_mode(False):
        given = engine.checkpoint, engine.config, engine.device, engine.dtype, range(_TOKENS), rank, 2.0 * rank
        with Network(*given) as network:
            with torch.no_grad():
                fill(network.talker)
            network.start(0)
            held = torch.cuda.memory_allocated(engine.device) if is_gpu else 0
            if is_gpu:
                torch.cuda.reset_peak_memory_stats(engine.device)
            times = []
            for step in range(1, steps + _WARM_UPS + 1):
                began = time.perf_counter()
                network.learn([group], 1e-5, step)  # waits for the losses
                times.append(1000 * (time.perf_counter() - began))
            peak = torch.cuda.max_memory_allocated(engine.device) if is_gpu else 0
            note = network.note
    return {
        "ms": round(statistics.median(times[_WARM_UPS:]), 2),
        "peak_gib": round(peak / 2**30, 2),
        "held_gib": round(held / 2**30, 2),
        "note": note,
    }


def _row(positions: int, codebooks: int, generator: torch.Generator) -> TrainingRow:
    is_code = torch.arange(positions) >= positions // 10
    codes = torch.randint(0, 1024, (positions, codebooks), generator=generator)
    tokens = torch.randint(0, _TOKENS, (positions,), generator=generator)
    return TrainingRow(tokens, codes, is_code, codes.roll(-1, 0).masked_fill(~is_code[:, None], IGNORED))
