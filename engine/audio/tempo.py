"""Tempo change at constant pitch, by FFmpeg's atempo filter through PyAV, which ComfyUI requires."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from ..core.config import SAMPLE_RATE
from ..core.optional import import_optional


def check_tempo() -> None:
    """Raise HiggsError if PyAV is missing."""
    import_optional("av.filter", "Graph")


def with_tempo(wav: torch.Tensor, tempo: float) -> torch.Tensor:
    """Speed up speech [n] by `tempo`, 0.5 to 100, to [round(n / tempo)]. Raises HiggsError if PyAV is missing."""
    size = round(len(wav) / tempo)
    if tempo == 1.0 or not len(wav):
        return wav
    graph = import_optional("av.filter", "Graph")()
    to_frame = import_optional("av", "AudioFrame").from_ndarray
    time_base = Fraction(1, SAMPLE_RATE)
    source = graph.add_abuffer(format="flt", sample_rate=SAMPLE_RATE, layout="mono", time_base=time_base)
    filters = [source, graph.add("atempo", f"{tempo:.6f}"), graph.add("abuffersink")]
    graph.link_nodes(*filters).configure()
    frame = to_frame(wav.float().numpy()[None], format="flt", layout="mono")
    frame.sample_rate, frame.time_base, frame.pts = SAMPLE_RATE, time_base, 0
    graph.push(frame)
    graph.push(None)
    made: list[np.ndarray] = []
    while True:
        try:
            made.append(graph.pull().to_ndarray()[0])
        except (EOFError, BlockingIOError):  # no more output
            break
    faster = torch.from_numpy(np.concatenate([*made, np.zeros(size, np.float32)]))
    return faster[:size].clone()
