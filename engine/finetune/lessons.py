"""The order of a training: which clips it learns, which it holds out, and the rows of every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..core.config import FRAME_RATE
from ..prompt.sequences import Prompts
from ..talker.family import Family
from ..voice.voice import Voice
from .rows import TrainingRow, Utterance, make_row, prompt_of, together

ROWS = 8  # of a step
_ALONE = 0.25  # share of rows without a reference
_HELD_OUT = 0.1  # share of the clips that are not learned
_FEWEST_HELD = 3
_REFERENCE = 2.0, 12.0  # seconds that a reference should have


class Lessons:
    """Steps of a training on clips of one speaker. The seed decides all, so a step can be asked for at any time.

    Most rows have another clip as their reference. What is held out is never a reference of what is learned, nor the
    other way round.
    """

    def __init__(self, prompts: Prompts, family: Family, utterances: Sequence[Utterance], seed: int):
        self._prompts, self._family, self._seed = prompts, family, seed
        order = torch.randperm(len(utterances), generator=torch.Generator().manual_seed(seed % 2**63)).tolist()
        count = min(max(_FEWEST_HELD, round(_HELD_OUT * len(utterances))), len(utterances) // 2)
        self.held_out = [utterances[at] for at in sorted(order[:count])]
        self.learned = [utterances[at] for at in sorted(order[count:])]

    def step(self, number: int) -> list[list[TrainingRow]]:
        """Return the rows of step `number`, from 0, in groups of one size."""
        return together([self._row(index) for index in range(number * ROWS, (number + 1) * ROWS)])

    def _row(self, index: int) -> TrainingRow:
        passed, place = divmod(index, len(self.learned))
        generator = torch.Generator().manual_seed((self._seed + 1_000_003 * (passed + 1)) % 2**63)
        chosen = self.learned[torch.randperm(len(self.learned), generator=generator)[place]]
        draws = torch.rand(len(self.learned), 2, generator=generator)[place].tolist()
        others = references(self.learned, chosen)
        reference = others[int(draws[1] * len(others))] if others and draws[0] >= _ALONE else None
        return self._made(chosen, reference)

    def _made(self, chosen: Utterance, reference: Utterance | None) -> TrainingRow:
        row = make_row(self._prompts, self._family, chosen, reference) if reference else None
        row = row or make_row(self._prompts, self._family, chosen, None)
        assert row is not None, "clips that are too long were left out"
        return row

    def test(self) -> list[list[TrainingRow]]:
        """Return the rows of what is held out, in groups of one size."""
        rows = []
        for at, one in enumerate(self.held_out):
            others = references(self.held_out, one)
            rows.append(self._made(one, others[at % len(others)] if others else None))
        return together(rows)

    def vocabulary(self) -> set[int]:
        """Return the ids of all tokens that rows have."""
        ids: set[int] = set()
        for one in (*self.learned, *self.held_out):
            for voice in (None, Voice(one.codes, one.text)):
                ids.update(prompt_of(self._prompts, one.text, voice).ids)
        return ids


def references(utterances: Sequence[Utterance], but: Utterance | None = None) -> list[Utterance]:
    """Return the clips that may be the reference of another one: those of a good length, or all if none has."""
    low, high = (seconds * FRAME_RATE for seconds in _REFERENCE)
    others = [one for one in utterances if one is not but]
    return [one for one in others if low <= len(one.codes) <= high] or others


def fits(prompts: Prompts, family: Family, one: Utterance) -> str:
    """Return why a clip cannot be learned, or empty. Raises HiggsError as `Prompts.build`."""
    return "" if make_row(prompts, family, one, None) else "Its text and speech together are too long. Cut it in two."
