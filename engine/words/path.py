"""Monotonic paths: which word each frame says, by the attention that words get."""

from __future__ import annotations

import numpy as np
import torch

_FLOOR = 1e-3  # share of attention that any word may have by chance


def find_paths(attention: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the best path through each map of attention [M, T, W], T >= W, in which every word has at least one frame.

    Returns the first frame of each word [M, W] int64, and the mean attention on the path [M].
    """
    maps, frames, words = attention.shape
    shares = attention.numpy()
    scores = np.log(shares.clip(0) + np.float32(_FLOOR))
    best = np.full((maps, words + 1), -np.inf, np.float32)  # after a place that no path reaches
    best[:, 1] = scores[:, 0, 0]
    entered = np.zeros((frames, maps, words), bool)  # from the word before
    for frame in range(1, frames):
        np.greater(best[:, :-1], best[:, 1:], out=entered[frame])
        best[:, 1:] = np.maximum(best[:, 1:], best[:, :-1]) + scores[:, frame]
    starts = np.zeros((maps, words), np.int64)
    every, word = np.arange(maps), np.full(maps, words - 1)
    total = shares[:, 0, 0].copy()
    for frame in range(frames - 1, 0, -1):
        total += shares[every, frame, word]
        moved = entered[frame, every, word]
        starts[every[moved], word[moved]] = frame
        word -= moved
    return torch.from_numpy(starts), torch.from_numpy(total / frames)
