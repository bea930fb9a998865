"""The alphabet of codes, and the delay pattern: codebook c runs c rows behind codebook 0. Knows no model.

`codes` are the codec's frames [T, N]; `rows` are what the talker reads and writes [L, N].
"""

import torch

CODEBOOK_SIZE = 1024  # real codes 0..1023
BOC = 1024  # begin of codebook: fills a codebook before its first code
EOC = 1025  # end of codebook: fills it after its last code
CODE_VOCAB = 1026  # real codes and the two specials


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


def frames_ready(config, written: int, ended: bool, done: bool) -> int:
    """Whole frames in `written` rows of a talker of that ModelConfig.

    v2 closes with one junk row, so its last frame waits until the end is known.
    """
    frames = max(0, written - config.codebooks + 1)
    held_back = config.is_v2 and (ended or not done)
    return max(0, frames - 1) if held_back else frames
