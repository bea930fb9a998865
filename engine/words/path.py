"""Monotonic paths: which word each frame says, by the attention that words get."""

from __future__ import annotations

import numpy as np
import torch

_FLOOR = 1e-3  # share of attention that any word may have by chance


def find_paths(attention: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the best path through each map of attention [M, T, W], T >= W, in which every word has at least one frame.

    Returns the first frame of each word [M, W] int64, and the mean attention on the path [M].
    """
    shares = attention.numpy()
    starts = path_starts(np.log(shares.clip(0) + np.float32(_FLOOR)))
    word = (starts[:, None] <= np.arange(shares.shape[1])[None, :, None]).sum(2, keepdims=True) - 1
    return torch.from_numpy(starts), torch.from_numpy(np.take_along_axis(shares, word, 2).mean((1, 2)))


def path_starts(scores: np.ndarray) -> np.ndarray:
    """Return the first frame [M, W] of each word on the path of the highest sum through scores [M, T, W], T >= W."""
    maps, frames, words = scores.shape
    best = np.full((maps, words + 1), -np.inf, np.float32)  # after a place that no path reaches
    best[:, 1] = scores[:, 0, 0]
    entered = np.zeros((frames, maps, words), bool)  # from the word before
    for frame in range(1, frames):
        np.greater(best[:, :-1], best[:, 1:], out=entered[frame])
        best[:, 1:] = np.maximum(best[:, 1:], best[:, :-1]) + scores[:, frame]
    starts = np.zeros((maps, words), np.int64)
    every, word = np.arange(maps), np.full(maps, words - 1)
    for frame in range(frames - 1, 0, -1):
        moved = entered[frame, every, word]
        starts[every[moved], word[moved]] = frame
        word -= moved
    return starts
