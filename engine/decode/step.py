"""The hot path in torch ops: prefill, and sampling of a step's codes.

No Python control flow depends on data: masks instead of branches, no sync, no allocation in a step. The one exception
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
    """Prefill a sequence into a row of the state: cache, counters, sampling parameters and first logits."""
    keys, values = state.cache.keys[:, row], state.cache.values[:, row]
    start = _fill_prefix(talker, sequence, keys, values, prefixes)
    logits = talker.prefill(sequence.ids, sequence.audio, keys, values, start)
    state.logits[row].copy_(logits.view_as(state.logits[row]))
    state.start_row(row, sequence)


def _fill_prefix(
    talker: Talker, sequence: Sequence, keys: torch.Tensor, values: torch.Tensor, prefixes: PrefixCache | None
) -> int:
    """Fill the KV cache with a prompt's prefix, from the prefix cache or computed. Returns its length, 0 if too short.

    A prefix is always computed on its own. The same shapes round the same way, so speech does not depend on cache hits.
    """
    if sequence.prefix < MIN_PREFIX:
        return 0
    if prefixes is None or not prefixes.load(sequence, keys, values):
        talker.fill(sequence.ids, sequence.audio, keys, values, 0, sequence.prefix)
        if prefixes is not None:
            prefixes.keep(sequence, keys, values)
    return sequence.prefix


def sample(state: DecodeState) -> None:
    """Sample state.logits -> the step's output, counters, end flags, and the cache slots of the next position."""
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
