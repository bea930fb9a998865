"""One call of `speak`: a text in lines that decode together, and one stream of audio in the text's order.

Knows neither layers nor kernels, and what decodes the lines only as a lane.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import torch

from . import ending
from .codec import CONTEXT_FRAMES, EMIT_FRAMES, STEADY_FRAMES, WINDOW_FRAMES
from .codec_stream import make_stream
from .config import CODEBOOK_SIZE, FRAME_RATE, SamplingParams
from .errors import HiggsError
from .generate import Decoding
from .prefix import PrefixCache
from .speech import Speech
from .text import estimate_frames, estimate_seconds, split_text
from .voice import MAX_CLIP_SECONDS, Voice

_ANCHOR_FRAMES = int(MAX_CLIP_SECONDS * FRAME_RATE)
_UNHURRIED = 1.5  # so many times the estimated length is left in the context
_LEAST_SECONDS = 2.0  # however small the context: shorter chunks are not sentences
_EARLY = (1, 2, 4, 8, 16, 25, 50)  # frames of the first windows where somebody listens


@dataclass
class _Line:
    """One chunk of the text."""

    text: str
    expected: int  # frames it takes, by estimate
    left: int = 0  # of those, frames yet to come
    room: int = 0  # frames that the context leaves it
    codes: list[torch.Tensor] = field(default_factory=list)  # [k, N] each
    unheard: deque = field(default_factory=deque)  # those of them that are not in the stream yet
    done: bool = False
    ended: bool = False  # by itself, not at the limit

    def __post_init__(self):
        self.left = self.expected

    @property
    def frames(self) -> int:
        return sum(map(len, self.codes))


class Utterance:
    """Speaks one text. `on_frame(done, expected)` and `on_audio(wav)` are as for `Engine.speak`; both may raise."""

    def __init__(self, residency, builder, voice, params: SamplingParams, scene, on_frame, on_audio=None):
        self._residency, self._builder = residency, builder
        self._voice = self._given = voice
        self._params, self._scene, self._on_frame = params, scene, on_frame
        self._sound = _Sound(residency, on_audio)
        self._warnings: list[str] = []
        self._lines: list[_Line] = []
        self._turn = 0  # the line that is heard now
        self._frames = self._left = 0  # said, and expected yet, over all lines
        self._how = ""

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        """Lets go of the engine's parts: an exception that ends the call refers to this object for longer."""
        self._sound.close()
        self._residency = self._on_frame = None

    def say(self, text: str) -> Speech:
        """The whole text. Raises HiggsError for a prompt that does not fit and for sound that is not finite."""
        began = time.perf_counter()
        chunks = split_text(text, self._chunk_seconds(text))
        self._lines = [_Line(chunk, estimate_frames(chunk)) for chunk in chunks]
        self._left = sum(line.left for line in self._lines)
        first = 0
        if self._voice is None and len(chunks) > 1:
            self._decode(chunks[:1], 0)
            self._voice, first = self._anchor(chunks[0]), 1
        self._decode(chunks[first:], first)
        wav = self._sound.finish()
        none = torch.empty((0, self._residency.talker.config.codebooks), dtype=torch.int64)
        codes = torch.cat([none, *(piece for line in self._lines for piece in line.codes)])
        elapsed = time.perf_counter() - began
        limits = self._lines, self._params.max_frames, self._residency.context
        warnings = tuple(dict.fromkeys([*ending.warnings(*limits), *self._warnings]))
        return Speech(wav, codes, elapsed, len(chunks), ending.stopped(*limits), warnings, self._how)

    def _chunk_seconds(self, text: str) -> float:
        """As asked for, or as much shorter as it takes for a chunk to fit behind its voice; 0 still never splits.

        Without a voice the first chunk is the voice of the others, and both must fit.
        """
        wanted = self._params.chunk_seconds
        if not wanted:
            return wanted
        bare, whole = (len(self._builder.build(said, self._voice, self._scene).ids) for said in ("a", text))
        seconds = max(1.0, estimate_seconds(text))
        taken = FRAME_RATE * _UNHURRIED + max(0, whole - bare) / seconds  # positions a second of speech
        fits = self._room_behind(bare) / taken
        if self._voice is None and seconds > min(wanted, fits):
            fits /= 2
        return min(wanted, max(fits, _LEAST_SECONDS))

    def _room_behind(self, positions: int) -> int:
        return self._residency.context - positions - self._residency.talker.config.codebooks + 1

    def _decode(self, chunks: list[str], first: int):
        """Speaks these chunks, the first of which is line `first` of the text."""
        prompts = [self._prompt(chunk) for chunk in chunks]
        for line, prompt in zip(self._lines[first:], prompts, strict=False):
            line.room = self._room_behind(len(prompt.ids))
        if len(prompts) == 1:
            self._run(self._residency.lane(), prompts, first)
            return
        rows = self._params.max_frames + self._residency.talker.config.codebooks - 1
        with self._residency.batch(len(prompts), max(len(prompt.ids) for prompt in prompts) + rows) as lane:
            self._run(lane, prompts, first)

    def _prompt(self, chunk: str):
        prompt = self._builder.build(chunk, self._voice, self._scene)
        self._warnings += prompt.warnings
        if self._room_behind(len(prompt.ids)) < FRAME_RATE:
            remedies = ["Load the model with a larger context"]
            remedies += ["use a shorter reference clip"] if self._given is not None else []
            remedies += [] if self._params.chunk_seconds else ["set chunk_seconds above 0, so that the text is split"]
            raise HiggsError(
                f"Text and voice take {len(prompt.ids)} of {self._residency.context} positions, which leaves less than "
                f"a second for speech. {', or '.join(remedies)}."
            )
        return prompt

    def _run(self, lane, prompts: list, first: int):
        self._warnings += lane.notes
        rows = min(lane.state.batch, len(prompts))
        self._how = self._residency.how(lane) + (f", {rows} chunks at a time" if rows > 1 else "")
        self._sound.stream.in_turn = rows == 1
        # A voice made of this text's first line is of no use to the next call.
        prefixes = self._residency.prefixes if self._voice is self._given else PrefixCache(lane.pool, 1)
        with Decoding(
            self._residency.talker, *lane, prompts, self._params, first, self._tick, self._sound.wanted, prefixes
        ) as run:
            for index, codes in run:
                self._take(self._lines[first + index], run.lines[index], codes)

    def _take(self, line: _Line, said, codes: torch.Tensor):
        """Adds what a line has said since, and hears what is next."""
        line.codes.append(codes)
        line.unheard.append(codes)
        line.done, line.ended = said.done, said.ended
        self._count(line, len(codes))
        self._hear()
        self._tick()

    def _count(self, line: _Line, frames: int):
        left = 0 if line.done else max(0, line.left - frames)
        self._frames += frames
        self._left += left - line.left
        line.left = left

    def _tick(self):
        self._sound.poll()
        self._on_frame(self._frames, self._frames + self._left)

    def _hear(self):
        """Puts what is next in the text's order into the stream."""
        while self._turn < len(self._lines):
            line = self._lines[self._turn]
            while line.unheard:
                self._sound.push(line.unheard.popleft(), self._turn == 0, self._tick)
            if not line.done:
                return
            self._turn += 1

    def _anchor(self, chunk: str) -> Voice | None:
        """The first chunk as a voice; its transcript only where the whole of it is heard."""
        codes = torch.cat(self._lines[0].codes)
        if not len(codes):
            return None
        most = min(_ANCHOR_FRAMES, self._residency.context // 3)  # it may have run on, and others must fit behind it
        whole = self._lines[0].ended and len(codes) <= most
        codes = codes.masked_fill(codes >= CODEBOOK_SIZE, 0)[:most]
        return Voice(codes, chunk if whole else None, "first chunk")


class _Sound:
    """Codes in the text's order -> wav on the host, in windows that depend on the frames' numbers alone."""

    def __init__(self, residency, on_audio):
        # With emit=1, what is pushed at once makes one window.
        self.stream = make_stream(residency.decoder, residency.pool, emit=1)
        self._later = WINDOW_FRAMES if residency.pool.device.type == "cuda" else EMIT_FRAMES
        self._steady = self._later if on_audio is None else min(self._later, STEADY_FRAMES)
        self._on_audio = on_audio
        self._early = deque(_EARLY if on_audio is not None else (self._steady,))
        self.wanted = CONTEXT_FRAMES + self._early[0] if on_audio is not None else 0  # frames until somebody hears
        self._context = CONTEXT_FRAMES
        self._next, self._size = [], 0  # pieces of the next window, and how many frames it takes
        self._wavs: list[torch.Tensor] = []

    def push(self, codes: torch.Tensor, is_first: bool, on_window):
        """codes [k, N] of the text's first line, or of a later one; `on_window()` is called after each window."""
        while len(codes):
            if not self._next:
                self._size = self._window(is_first)
            self._next.append(codes[: self._size])
            self._size -= len(self._next[-1])
            codes = codes[len(self._next[-1]) :]
            if not self._size:
                self._decode()
                on_window()

    def _window(self, is_first: bool) -> int:
        """Frames of the next window; the first one waits for what its frames need on their right."""
        if self._early:
            context, self._context = self._context, 0
            return context + self._early.popleft()
        return self._steady if is_first else self._later

    def _decode(self):
        codes, self._next = torch.cat(self._next), []
        self._give(self.stream.push(codes))
        if self.wanted:  # else the loop's next look, some steps later, would be the first to find it
            self._give(self.stream.poll(wait=True))

    def poll(self):
        """Hands on what has become final since; needed only where somebody listens."""
        if self._on_audio is not None:
            self._give(self.stream.poll())

    def _give(self, wav: torch.Tensor):
        if not len(wav):
            return
        if not wav.isfinite().all():
            raise HiggsError("The model produced invalid audio (NaN). Load it with dtype fp32.")
        self._wavs.append(wav.clamp_(-1.0, 1.0))
        self.wanted = 0
        if self._on_audio is not None:
            self._on_audio(wav)

    def close(self):
        """Lets go of the decoder and of whoever listens."""
        self.stream = self._on_audio = None

    def finish(self) -> torch.Tensor:
        """The rest -> the whole wav [T]."""
        if self._next:
            self.stream.emit = 2 * WINDOW_FRAMES  # more than there can be: the rest is one window with the end
            self._decode()
        self._give(self.stream.finish())
        return torch.cat([torch.empty(0), *self._wavs])
