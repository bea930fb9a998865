"""Code vocabulary and delay pattern: codebook c runs c columns behind codebook 0.

`codes` are the codec's frames [T, K]. `columns` are the delayed codes [n, K] that the talker reads and writes, one
column per position.
"""

import torch

CODEBOOK_SIZE = 1024  # real codes 0..1023
BOC = 1024  # begin of codebook: fills a codebook before its first code
EOC = 1025  # end of codebook: fills it after its last code
CODE_VOCAB = 1026  # real codes and the two specials


def apply_v3(codes: torch.Tensor) -> torch.Tensor:
    """Apply v3's delay pattern: codes [T, K] -> columns [T + K - 1, K]. Gaps are filled with BOC and EOC."""
    frames, codebooks = codes.shape
    columns = torch.full((frames + codebooks - 1, codebooks), BOC, dtype=torch.int64)
    for codebook in range(codebooks):
        columns[codebook : codebook + frames, codebook] = codes[:, codebook]
        columns[codebook + frames :, codebook] = EOC
    return columns


def apply_v2(codes: torch.Tensor) -> torch.Tensor:
    """Apply v2's delay pattern between a BOC and an EOC column: codes [T, K] -> columns [T + K + 1, K]."""
    codebooks = codes.shape[1]
    edge = torch.ones((1, codebooks), dtype=torch.int64)
    return apply_v3(torch.cat([edge * BOC, codes.cpu(), edge * EOC]))


def frames_ready(num_generated: int, codebooks: int, closing_columns: int, ended: bool, finished: bool) -> int:
    """Return the number of whole frames in `num_generated` step outputs.

    closing_columns: outputs that a family emits after its last frame. That many frames are held back until they are
    known not to be the end of speech.
    """
    frames = max(0, num_generated - codebooks + 1)
    return frames if finished and not ended else max(0, frames - closing_columns)
