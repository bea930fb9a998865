"""Monotonic paths: which word each frame says, by the attention that words get."""

from __future__ import annotations

import torch
import torch.nn.functional as F

_FLOOR = 1e-3  # share of attention that any word may have by chance


def find_paths(attention: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the best path through each map of attention [M, T, W], T >= W, in which every word has at least one frame.

    Returns the first frame of each word [M, W] int64, and the mean attention on the path [M].
    """
    maps, frames, words = attention.shape
    scores = attention.clamp_min(0).add(_FLOOR).log()
    best = torch.full((maps, words), float("-inf"))
    best[:, 0] = scores[:, 0, 0]
    entered = torch.zeros((frames, maps, words), dtype=torch.bool)  # from the word before
    for frame in range(1, frames):
        before = F.pad(best[:, :-1], (1, 0), value=float("-inf"))
        torch.gt(before, best, out=entered[frame])
        best = torch.maximum(best, before) + scores[:, frame]
    starts = torch.zeros((maps, words), dtype=torch.int64)
    every, word = torch.arange(maps), torch.full((maps,), words - 1)
    total = attention[:, 0, 0].clone()
    for frame in range(frames - 1, 0, -1):
        total += attention[every, frame, word]
        moved = entered[frame, every, word]
        starts[every[moved], word[moved]] = frame
        word = word - moved.long()
    return starts, total / frames
