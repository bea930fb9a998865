"""Sampling of a step's codes in torch ops.

No Python control flow depends on data: masks instead of branches, no sync, no allocation in a step. The one exception
is the KV cache's `filled`, for an executor that runs this code at every step on the CPU.
"""

from __future__ import annotations

from .sampler import RepetitionAwareSampler
from .state import DecodeState


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
