"""Stop reasons and warnings: why speech stopped, and how much of the text was not spoken."""

from __future__ import annotations

from ..core.config import FRAME_RATE
from ..core.sequence import Sequence
from .result import END_OF_SPEECH, duration, quoted

_MORE = {
    "limit": "Raise max_frames, or set chunk_seconds above 0 so that the text is split.",
    "context": "Load the model with a larger context, or use a shorter reference clip or smaller chunk_seconds.",
}
_RAN_ON = "There was time for all of the text, but speech did not end. Try another seed or a lower temperature."


def stopped(sequences: list[Sequence], limit: int, context: int) -> str:
    """Return the stop reason: end of speech, the limit of `limit` frames, or a full context of `context` positions."""
    reasons = []
    for kind in ("limit", "context"):
        cut = [number for number, sequence in enumerate(sequences, 1) if _cut_by(sequence, limit) == kind]
        if cut:
            reasons.append(_place(kind, limit, context) + _in_chunks(cut, len(sequences)))
    return ", ".join(reasons) or END_OF_SPEECH


def warnings(sequences: list[Sequence], limit: int, context: int) -> list[str]:
    """Return one sentence per kind of cut: where it is, how much of the text is missing, and what helps."""
    total = sum(sequence.expected for sequence in sequences) or 1
    lines = []
    for kind in ("limit", "context"):
        cut = [sequence for sequence in sequences if _cut_by(sequence, limit) == kind]
        short = [sequence for sequence in cut if sequence.num_frames < sequence.expected]
        long = [sequence for sequence in cut if sequence.num_frames >= sequence.expected]
        place = _place(kind, limit, context)
        if short:
            share = max(1, round(100 * sum(sequence.expected - sequence.num_frames for sequence in short) / total))
            where = _where(short, len(sequences))
            lines.append(f"Speech was cut at {place}{where}: about {share} % of the text was not spoken. {_MORE[kind]}")
        if long:
            lines.append(f"Speech was cut at {place}{_where(long, len(sequences))}. {_RAN_ON}")
    return lines


def _cut_by(sequence: Sequence, limit: int) -> str:
    """Return what cut a sequence: "limit", "context", or "" if it ended by itself."""
    if sequence.ended:
        return ""
    return "context" if sequence.budget < limit else "limit"


def _place(kind: str, limit: int, context: int) -> str:
    if kind == "limit":
        return f"the frame limit ({limit} frames, {duration(limit / FRAME_RATE)})"
    return f"the end of the context ({context} tokens)"


def _in_chunks(numbers: list[int], count: int) -> str:
    if count == 1:
        return ""
    if len(numbers) == count:
        return f" in all {count} chunks"
    return f" in chunk {', '.join(map(str, numbers))} of {count}"


def _where(cut: list[Sequence], count: int) -> str:
    """Return the place of the cut: the chunk's first words if there is one, else the number of chunks."""
    if count == 1:
        return ""
    if len(cut) > 1:
        return f" in {len(cut)} of {count} chunks"
    return f" in the chunk that starts {quoted(cut[0].text)}"
