"""The torch side of the hot path: a prompt into the cache, and a step's codes out of its logits.

Nothing here depends on data in Python: no sync, no allocation in a step, masks instead of branches. The one exception
is the KV cache's `filled`, for an executor that runs this code at every step on the CPU.
"""

from __future__ import annotations

import torch

from ..core.sequence import Sequence
from ..talker import Talker
from .prefix_cache import MIN_PREFIX, PrefixCache
from .sampler import RepetitionAwareSampler
from .state import DecodeState


def prefill(
    talker: Talker, state: DecodeState, row: int, sequence: Sequence, prefixes: PrefixCache | None = None
) -> None:
    """Puts a sequence into a row of the state: cache, counters, sampling parameters and the first logits."""
    keys, values = state.cache.keys[:, row], state.cache.values[:, row]
    start = _fill_prefix(talker, sequence, keys, values, prefixes)
    logits = talker.prefill(sequence.ids, sequence.audio, keys, values, start)
    state.logits[row].copy_(logits.view_as(state.logits[row]))
    state.start_row(row, sequence)


def _fill_prefix(
    talker: Talker, sequence: Sequence, keys: torch.Tensor, values: torch.Tensor, prefixes: PrefixCache | None
) -> int:
    """Puts a prompt's prefix into the cache, kept or computed, and returns its length; 0 where it is too short.

    It is always computed by itself: the same shapes round the same way, so speech does not depend on what was kept.
    """
    if sequence.prefix < MIN_PREFIX:
        return 0
    if prefixes is None or not prefixes.load(sequence, keys, values):
        talker.fill(sequence.ids, sequence.audio, keys, values, 0, sequence.prefix)
        if prefixes is not None:
            prefixes.keep(sequence, keys, values)
    return sequence.prefix


def sample(state: DecodeState) -> None:
    """state.logits -> the step's output, counters, ends, and the slots of the position that it is decoded at."""
    family, cache, delay, sampler = state.family, state.cache, state.delay, state.sampler
    delay.suppress(sampler.suppress_specials, sampler.suppressed, ends_early=family.ends_on_any_codebook)
    sampler.sample(state.logits, delay)
    if family.ends_on_any_codebook:
        delay.end_on_any_codebook()
    else:
        delay.end_on_codebook_0()
    if isinstance(sampler, RepetitionAwareSampler):
        sampler.remember(delay.output)
    cache.seek(delay.num_generated)
    delay.emit()
