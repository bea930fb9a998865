"""Paths: which word each frame says, by the attention that words get."""

from __future__ import annotations

import numpy as np
import torch

_FLOOR = 1e-3  # share of attention that any word may have by chance
_BACK = 9.0  # what a step back costs a free path, in nats: more than a frame that surely says another word


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


def changes(values: np.ndarray) -> np.ndarray:
    """Return the places of values [n] that differ from the one before them. The first does."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))  # np.diff with `prepend` is slow


def free_path(attention: np.ndarray, skips: np.ndarray, is_whole: bool = True) -> np.ndarray:
    """Return the word [T] that each frame says in attention [T, W], by a path that may skip words and go back.

    skips: what leaving out each word costs, [W] in nats. Frames that attend most to the same word stay together.
    is_whole: False if more frames follow, so that the words after the path are not left out.
    """
    frames = len(attention)
    cuts = changes(attention.argmax(1))
    scores = np.add.reduceat(np.log(attention + np.float32(_FLOOR)), cuts)  # [runs, W]
    costs = np.concatenate([[0.0], skips.cumsum()])
    done, ahead = costs[1:], costs[1:-1]
    best = scores.astype(float)  # of paths that end there
    offers = np.empty_like(best)  # the same without the run itself
    best[0] -= costs[:-1]
    for before, offer, now in zip(best, offers[1:], best[1:], strict=False):
        offer[0] = before[0]
        np.maximum.accumulate((before + done)[:-1], out=offer[1:])
        offer[1:] -= ahead
        np.maximum(offer, before, out=offer)
        np.maximum(offer, np.maximum.reduce(before) - _BACK, out=offer)
        now += offer
    word = int((best[-1] + done if is_whole else best[-1]).argmax())
    path = np.full(len(cuts), word)
    for run in range(len(cuts) - 1, 0, -1):
        before, offer = best[run - 1], offers[run, word]
        if before[word] != offer:  # the path came from another word
            skipping = before[:word] + done[:word]
            forward = int(skipping.argmax()) if word else -1
            word = forward if word and skipping[forward] - costs[word] == offer else int(before.argmax())
        path[run - 1] = word
    return path.repeat(np.diff(cuts, append=frames))
