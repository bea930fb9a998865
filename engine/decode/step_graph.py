"""A step as one captured CUDA graph.

A captured step allocates nothing. It is checked before use: from the same state, eager steps and replays must agree bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..device.graph import Graph, GraphError, capture, capturing, same_bits
from ..device.torch_names import storage_id
from .state import DecodeState

WARM_UPS = 2  # eager steps before the capture, because libraries initialize on first use


def capture_step(step: Callable[[], None], state: DecodeState, stream: torch.cuda.Stream) -> Graph:
    """Capture a step of a state. Raises GraphError if that fails; nothing stays allocated.

    The state must have no live row: warm-up and check step it, then restore it.
    """
    before: list = []
    graph = None
    try:
        with capturing(stream), torch.cuda.stream(stream):
            before = _snapshot(state)
            for _ in range(WARM_UPS):
                step()
            graph = capture(step, stream)
            _restore(before)
            _prove(step, graph, state, stream)
    except GraphError:
        if graph is not None:
            graph.reset()
        raise
    finally:
        _restore(before)
    return graph


def _prove(step: Callable[[], None], graph: Graph, state: DecodeState, stream: torch.cuda.Stream):
    _pose(state)
    posed = _snapshot(state)
    step()
    step()
    eager = _results(state)
    _restore(posed)
    graph.replay()
    graph.replay()
    replayed = _results(state)
    stream.synchronize()
    for name in eager:
        if not same_bits(eager[name], replayed[name]):
            raise GraphError(f"a replayed step differs from an eager one in {name}")


def _snapshot(state: DecodeState) -> list:
    """Return (buffer, copy) for every buffer except the cache, which is still empty."""
    cache = {storage_id(tensor) for tensor in (state.cache.keys, state.cache.values, state.cache.queries)}
    return [(t, t.clone()) for t in state.tensors() if storage_id(t) not in cache]


def _restore(copies):
    for buffer, copy in copies:
        buffer.copy_(copy)


def _pose(state: DecodeState):
    """Make every row live at the cache's first slots, with logits and noise that differ between rows and codes."""
    ramp = torch.arange(state.logits.numel(), device=state.device, dtype=torch.float32).view_as(state.logits)
    state.logits.copy_((ramp * 0.618).frac_().mul_(8.0))
    state.sampler.noise_scale.fill_(1.0)
    state.sampler.sequence_index.copy_(torch.arange(state.batch, device=state.device))
    state.delay.max_generated.fill_(state.max_seq_len)
    state.delay.done.fill_(False)


def _results(state: DecodeState) -> dict:
    """Return copies of everything that two steps from the pose write."""
    cache, delay = state.cache, state.delay
    return {
        "logits": state.logits.clone(),
        "codes": delay.outputs[:, :2].clone(),
        "counters": torch.stack([delay.num_generated, cache.position, delay.countdown, state.sampler.finite.long()]),
        "cache": torch.stack([cache.keys[:, :, :, :2], cache.values[:, :, :, :2]]),
        "queries": cache.queries[:, :, :2].clone(),
    }
