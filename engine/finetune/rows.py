"""Training rows: a clip's prompt and columns, as speech decodes them, and the columns to be learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.codes import BOC
from ..core.config import SamplingParams
from ..core.sequence import Sequence
from ..prompt.sequences import Prompts
from ..talker.family import Family
from ..voice.voice import Voice

SIZES = (*range(128, 1025, 128), *range(1280, 2049, 256))  # positions that rows are padded to
POSITIONS = 1024  # of the rows that pass together, where one alone does not take more
IGNORED = -1  # target that is not learned


@dataclass(frozen=True, eq=False)
class Utterance:
    """A clip of the speaker: its name for messages, text, and codes [T, K] int64 on the host."""

    name: str
    text: str
    codes: torch.Tensor


@dataclass(frozen=True, eq=False)
class TrainingRow:
    """One training sequence of n positions, on the host.

    tokens [n]; codes [n, K] where is_code [n]; targets [n, K]: the column that follows each position, or IGNORED.
    """

    tokens: torch.Tensor
    codes: torch.Tensor
    is_code: torch.Tensor
    targets: torch.Tensor

    @property
    def size(self) -> int:
        """Positions with padding."""
        return next(size for size in SIZES if len(self.tokens) <= size)


def make_row(prompts: Prompts, family: Family, clip: Utterance, reference: Utterance | None) -> TrainingRow | None:
    """Return the row that teaches `clip` in the voice of `reference`, or None if it is too long.

    BOC is not learned, for the engine sets it. EOC is: it ends speech. Raises HiggsError as `Prompts.build`.
    """
    voice = None if reference is None else Voice(reference.codes, reference.text)
    prompt = prompt_of(prompts, clip.text, voice)
    start, columns = len(prompt), family.delay(clip.codes)
    seed = sum(len(rows) for at, rows in prompt.audio if at + len(rows) == start)  # columns that the prompt ends with
    columns = columns[seed:]
    length = start + len(columns) - 1
    if length > SIZES[-1]:
        return None
    codes = torch.zeros(length, columns.shape[1], dtype=torch.int64)
    is_code = torch.zeros(length, dtype=torch.bool)
    for at, rows in (*prompt.audio, (start, columns[:-1])):
        codes[at : at + len(rows)], is_code[at : at + len(rows)] = rows, True
    tokens = torch.zeros(length, dtype=torch.int64)
    tokens[:start] = torch.tensor(prompt.ids)
    targets = torch.full_like(codes, IGNORED)
    targets[start - 1 :] = columns.masked_fill(columns == BOC, IGNORED)
    return TrainingRow(tokens, codes, is_code, targets)


def prompt_of(prompts: Prompts, text: str, voice: Voice | None) -> Sequence:
    return prompts.build(text, voice, None, params=SamplingParams(), index=0)


def together(rows: list[TrainingRow]) -> list[list[TrainingRow]]:
    """Group rows of one size into batches that pass together."""
    groups = []
    for size in sorted({row.size for row in rows}):
        own = [row for row in rows if row.size == size]
        count = _rows_of(size)
        groups += [own[first : first + count] for first in range(0, len(own), count)]
    return groups


def shape_of(rows: list[TrainingRow]) -> tuple[int, int]:
    """Return (rows, positions) of the batch that rows of one size pass in, at least as many rows as they are."""
    return max(len(rows), _rows_of(rows[0].size)), rows[0].size


def _rows_of(size: int) -> int:
    return max(1, POSITIONS // size)
