"""Logits to codes: temperature, top-k and top-p per codebook in fp32, and a draw by the Gumbel-max rule. No sync.

Per codebook, never over the fused vocabulary, where whole codebooks could vanish. Every tensor is a field of the
state it is handed, which this file knows by its field names only.
"""

import math

import torch

from ..codes import BOC, EOC
from .philox import gumbel, philox

DRAW, REDRAW = 0, 1  # streams of the noise: the draw, and v2's second draw of repeated codes
_STREAM = 1 << 16


def sample(state):
    """state.logits [B, N, V] fp32 -> state.row [B, N]. `state.banned` tells where EOC may not be drawn."""
    _check(state)
    torch.mul(state.logits, state.inverse_temperature, out=state.adjusted)
    _ban(state, state.adjusted)
    _truncate(state)
    _draw(state, state.adjusted, DRAW, state.row)
    if state.config.is_v2:
        _redraw_repeats(state)


def _check(state):
    """state.finite [B]: cleared where a live row's logits hold NaN or an infinity, and never set here."""
    torch.linalg.vector_norm(state.logits.view(state.batch, -1), math.inf, -1, out=state.peak)
    torch.lt(state.peak, math.inf, out=state.peak_finite)  # NaN is not less either
    state.finite.logical_and_(state.peak_finite.logical_or_(state.done))


def _ban(state, logits):
    """Takes the specials that may not be drawn out of logits [B, N, V], in place."""
    logits[..., BOC].masked_fill_(state.ban.unsqueeze(1), float("-inf"))
    logits[..., EOC].masked_fill_(state.banned, float("-inf"))


def _truncate(state):
    """Top-k, then top-p over what top-k left; ties with the last kept logit stay. In place on state.adjusted."""
    ordered = state.ordered
    torch.topk(state.adjusted, ordered.shape[-1], dim=-1, out=(ordered, state.order))
    torch.gather(ordered, -1, state.top_k_index, out=state.threshold_k)
    torch.lt(ordered, state.threshold_k, out=state.dropped)
    ordered.masked_fill_(state.dropped, float("-inf"))
    torch.softmax(ordered, dim=-1, out=state.mass)
    torch.cumsum(state.mass, dim=-1, out=state.cumulative)
    state.cumulative.sub_(state.mass)  # mass above each code: the one that crosses top-p is kept
    torch.lt(state.cumulative, state.top_p, out=state.dropped)
    state.mass.copy_(state.dropped)  # sums of bool allocate on CUDA
    torch.sum(state.mass, -1, keepdim=True, out=state.threshold_p)
    state.kept.copy_(state.threshold_p.sub_(1).clamp_(min=0))
    torch.gather(ordered, -1, state.kept, out=state.threshold_p)
    torch.maximum(state.threshold_p, state.threshold_k, out=state.threshold_p)
    torch.lt(state.adjusted, state.threshold_p, out=state.dropped)
    state.adjusted.masked_fill_(state.dropped, float("-inf"))


def _draw(state, logits, stream: int, out):
    """out [B, N] = argmax(logits + Gumbel noise), a sample of softmax(logits). Adds the noise to `logits`.

    Counters: (code within a word, codebook and stream, frame, line); the four words of a counter serve four codes.
    """
    words = state.words
    words[:, :, 0].copy_(state.quad_index)
    words[:, :, 1].copy_(state.book_index.view(1, -1, 1))
    words[:, :, 1].add_(stream * _STREAM)
    words[:, :, 2].copy_(state.written.view(-1, 1, 1))
    words[:, :, 3].copy_(state.line.view(-1, 1, 1))
    philox(words, state.keys_philox, state.factors, state.product, state.high)
    gumbel(words.view(state.noise.shape), state.noise)
    if stream == DRAW:
        state.noise.mul_(state.noise_scale)
    logits.add_(state.noise[..., : logits.shape[-1]])
    torch.argmax(logits, dim=-1, out=out)


def _redraw_repeats(state):
    """v2's repetition rule as transformers has it: a code seen too often in the last frames is drawn again.

    Counted per codebook against state.history [B, W, N]; begin and end codes do not count. The second draw ignores
    temperature, top-k and top-p.
    """
    torch.eq(state.history, state.row.unsqueeze(1), out=state.repeats)
    torch.lt(state.history, BOC, out=state.specials)
    state.repeats.logical_and_(state.specials).logical_and_(state.window_mask)
    state.repeats_wide.copy_(state.repeats)
    torch.sum(state.repeats_wide, 1, out=state.repeat_count)
    torch.ge(state.repeat_count, state.repeat_limit, out=state.cells)
    state.adjusted.copy_(state.logits)
    _ban(state, state.adjusted)
    _draw(state, state.adjusted, REDRAW, state.redrawn)
    torch.where(state.cells, state.redrawn, state.row, out=state.row)


def remember(state):
    """Shifts the finished row into v2's repeat window."""
    state.history_next[:, :-1].copy_(state.history[:, 1:])
    state.history_next[:, -1].copy_(state.row)
    state.history.copy_(state.history_next)
