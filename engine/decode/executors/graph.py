"""Graph executor: runs the step as one captured CUDA graph.

A captured step allocates nothing. It is checked before use: from the same state, eager steps and replays must agree bit
for bit.
"""

from __future__ import annotations

import contextlib

import torch

from ...device.graph import GraphError, capture, capturing, same_bits
from ...device.torch_names import storage_id
from ..backend import Backend
from ..state import DecodeState

WARM_UPS = 2  # eager steps before the capture, because libraries initialize on first use


class GraphExecutor:
    """Captures the step at construction and replays it. Raises GraphError if that fails; nothing stays allocated.

    The state must have no live row: warm-up and check step it, then restore it.
    """

    name = "graph"

    def __init__(self, backend: Backend, stream: torch.cuda.Stream):
        state = backend.state
        before: list = []
        try:
            with capturing(stream), torch.cuda.stream(stream):
                before = _snapshot(state)
                for _ in range(WARM_UPS):
                    backend.step()
                self._graph = capture(backend.step, stream)
                self._prove(backend, stream, before)
        except GraphError:
            self.close()
            raise
        finally:
            _restore(before)

    def _prove(self, backend: Backend, stream: torch.cuda.Stream, before: list):
        state = backend.state
        _restore(before)
        _pose(state)
        posed = _snapshot(state)
        backend.step()
        backend.step()
        eager = _results(state)
        _restore(posed)
        self._graph.replay()
        self._graph.replay()
        replayed = _results(state)
        stream.synchronize()
        for name in eager:
            if not same_bits(eager[name], replayed[name]):
                raise GraphError(f"a replayed step differs from an eager one in {name}")

    def step(self) -> None:
        self._graph.replay()

    def close(self) -> None:
        with contextlib.suppress(AttributeError):  # already closed, or never made
            self._graph.reset()
            del self._graph


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
