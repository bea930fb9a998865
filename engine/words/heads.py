"""The aligning heads of a checkpoint: found on speech of its own, and kept beside its fingerprint.

A head aligns if its attention goes through the words one by one, and leaves a sentence where the sound pauses. Nobody
has to say which heads do: a card names them, or else the first call of `Engine.words` finds them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from ..core.config import FRAME_RATE, SAMPLE_RATE
from ..core.errors import HiggsError
from ..cuda import cubin_cache
from ..files.json_file import read_json
from ..files.whole_file import write_whole
from ..talker.config import ModelConfig
from .attention import Head
from .boundaries import pauses_of
from .path import find_paths

log = logging.getLogger("higgs_tts")

PROBE = "The rain is over. Look, the sun is out again! Shall we go for a walk? No, thank you. I am tired, my friend."
PROBE_FRAMES = 500  # at most
LEAST_ATTENTION = 0.5  # of what a head attends to in the text, on its path
_LESS = 0.1  # than the best head: too little to add anything
_MOST = 4  # heads
_LAGS = range(-6, 13)  # frames: a head may look at the next word, or follow the last codebook
_LEAST_PAUSE = 0.1  # seconds, of pauses between sentences
_FEWEST = 2  # pauses by which a head is judged
_SOFT = 0.05  # seconds from the end of a silence to the beginning of a word
_MISSED = 0.25  # seconds: an onset without a boundary near it
_MOST_ERROR = 0.08  # seconds between the onset after a pause and the nearest end of a clause, on average
_CLAUSE_ENDS = ".,;:!?\u2026\u3002\uff0c\uff01\uff1f\u3001"


def score_heads(
    attention: torch.Tensor, words: Sequence[str], wav: torch.Tensor, lead: int
) -> list[tuple[float, Head]]:
    """Return (attention on its path, head) of each head that aligns, the best first. Its layer is 0.

    attention: [heads, T, W]. words: a chunk's. wav: its sound [n], which begins `lead` samples into that of its codes.
    """
    starts, shares = find_paths(attention)
    ends = [number for number, word in enumerate(words[:-1], 1) if word[-1] in _CLAUSE_ENDS]
    onsets = [
        (stop + lead) / SAMPLE_RATE + _SOFT
        for start, stop in pauses_of(wav)[2]
        if stop - start >= _LEAST_PAUSE * SAMPLE_RATE
    ]
    if len(onsets) < _FEWEST or not ends:
        return []
    scored = []
    for head in (shares >= LEAST_ATTENTION).nonzero().flatten().tolist():
        error, lag = _lag_of((starts[head, ends] + 0.5) / FRAME_RATE, torch.tensor(onsets))
        if error <= _MOST_ERROR:
            scored.append((float(shares[head]), Head(0, head, lag)))
    return sorted(scored, reverse=True)


def _lag_of(boundaries: torch.Tensor, onsets: torch.Tensor) -> tuple[float, int]:
    """Return (error left, lag) of boundaries [n] that shall meet the onsets after pauses [m], all in seconds."""
    return min(
        (float((boundaries - lag / FRAME_RATE - onsets[:, None]).abs().amin(1).clamp_max(_MISSED).mean()), lag)
        for lag in _LAGS
    )


def choose_heads(
    layers: Iterable[torch.Tensor], words: Sequence[str], wav: torch.Tensor, lead: int
) -> tuple[Head, ...]:
    """Return the best aligning heads, or none. layers: each layer's attention [heads, T, W]; see `score_heads`."""
    scored = [
        (share, head._replace(layer=layer))
        for layer, attention in enumerate(layers)
        for share, head in score_heads(attention, words, wav, lead)
    ]
    scored.sort(reverse=True)
    return tuple(head for share, head in scored[:_MOST] if share >= scored[0][0] - _LESS)


def checked(rows: object, config: ModelConfig) -> tuple[Head, ...] | None:
    """Return heads from rows [layer, head, lag] of a file. None if they are no such rows, or not this talker's."""
    if not isinstance(rows, list):
        return None
    ranges = range(config.layers), range(config.heads), _LAGS
    for row in rows:
        if not isinstance(row, list) or len(row) != len(ranges) or any(type(number) is not int for number in row):
            return None
        if any(number not in allowed for number, allowed in zip(row, ranges, strict=True)):
            return None
    return tuple(Head(*row) for row in rows)


def kept_heads(fingerprint: str, config: ModelConfig) -> tuple[Head, ...] | None:
    """Return the heads found earlier, empty if none aligns. None if they were never looked for."""
    path = _path(fingerprint)
    try:
        return checked(read_json(path).get("heads"), config) if path is not None and path.is_file() else None
    except HiggsError:  # damaged: they are found again
        return None


def keep_heads(fingerprint: str, heads: Sequence[Head]) -> None:
    """Keep the heads that were found. A failure goes to the debug log."""
    path = _path(fingerprint)
    if path is None:
        return
    try:
        write_whole(path, (json.dumps({"heads": heads}) + "\n").encode())
    except OSError as error:
        log.debug("Higgs TTS: the aligning heads could not be kept in %s (%s).", path, error)


def _path(fingerprint: str) -> Path | None:
    folder = cubin_cache.cache_folder()
    return folder / "heads" / f"{fingerprint}.json" if folder else None
