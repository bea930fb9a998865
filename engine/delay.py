"""The delay pattern: codebook c runs c rows behind codebook 0. Pure functions on codes; knows no model.

`codes` are the codec's frames [T, N]; `rows` are what the talker reads and writes [L, N].
"""

import torch

from .config import BOC, EOC


def apply_v3(codes: torch.Tensor) -> torch.Tensor:
    """Delays a clip as v3 was trained: codes [T, N] -> rows [T + N - 1, N], gaps filled with BOC and EOC."""
    frames, books = codes.shape
    rows = torch.full((frames + books - 1, books), BOC, dtype=torch.int64)
    for book in range(books):
        rows[book : book + frames, book] = codes[:, book]
        rows[book + frames :, book] = EOC
    return rows


def apply_v2(codes: torch.Tensor) -> torch.Tensor:
    """Delays a clip as v2 was trained, a BOC row before and an EOC row after: codes [T, N] -> rows [T + N + 1, N]."""
    books = codes.shape[1]
    edge = torch.ones((1, books), dtype=torch.int64)
    return apply_v3(torch.cat([edge * BOC, codes.cpu(), edge * EOC]))


def revert(rows: torch.Tensor) -> torch.Tensor:
    """Undoes the delay: rows [L, N] -> codes [L - N + 1, N], none while L < N."""
    length, books = rows.shape
    frames = max(0, length - books + 1)
    return torch.stack([rows[book : book + frames, book] for book in range(books)], dim=1)
