"""One call of `speak`: a text in lines that decode together, and one stream of audio in the text's order.

Knows neither layers nor kernels, and what decodes the lines only as a runner.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import torch

from . import ending
from .codec.waveform import Waveform
from .codes import CODEBOOK_SIZE
from .config import FRAME_RATE, SamplingParams
from .decode.prefix_cache import PrefixCache
from .decode.scheduler import Decoding
from .errors import HiggsError
from .prompt.chunking import estimate_frames, estimate_seconds, split_text
from .result import Speech
from .voice.clip import MAX_CLIP_SECONDS
from .voice.voice import Voice

_ANCHOR_FRAMES = int(MAX_CLIP_SECONDS * FRAME_RATE)
_UNHURRIED = 1.5  # so many times the estimated length is left in the context
_LEAST_SECONDS = 2.0  # however small the context: shorter chunks are not sentences


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


class SpeechRequest:
    """Speaks one text. `on_frame(done, expected)` and `on_audio(wav)` are as for `Engine.speak`; both may raise."""

    def __init__(self, loaded, builder, voice, params: SamplingParams, scene, on_frame, on_audio=None):
        self._loaded, self._builder = loaded, builder
        self._voice = self._given = voice
        self._params, self._scene, self._on_frame = params, scene, on_frame
        self._sound = Waveform(loaded, on_audio)
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
        self._loaded = self._on_frame = None

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
        none = torch.empty((0, self._loaded.talker.config.codebooks), dtype=torch.int64)
        codes = torch.cat([none, *(piece for line in self._lines for piece in line.codes)])
        elapsed = time.perf_counter() - began
        limits = self._lines, self._params.max_frames, self._loaded.context
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
        return self._loaded.context - positions - self._loaded.talker.config.codebooks + 1

    def _decode(self, chunks: list[str], first: int):
        """Speaks these chunks, the first of which is line `first` of the text."""
        prompts = [self._prompt(chunk) for chunk in chunks]
        for line, prompt in zip(self._lines[first:], prompts, strict=False):
            line.room = self._room_behind(len(prompt.ids))
        if len(prompts) == 1:
            self._run(self._loaded.runner(), prompts, first)
            return
        rows = self._params.max_frames + self._loaded.talker.config.codebooks - 1
        with self._loaded.batch(len(prompts), max(len(prompt.ids) for prompt in prompts) + rows) as runner:
            self._run(runner, prompts, first)

    def _prompt(self, chunk: str):
        prompt = self._builder.build(chunk, self._voice, self._scene)
        self._warnings += prompt.warnings
        if self._room_behind(len(prompt.ids)) < FRAME_RATE:
            remedies = ["Load the model with a larger context"]
            remedies += ["use a shorter reference clip"] if self._given is not None else []
            remedies += [] if self._params.chunk_seconds else ["set chunk_seconds above 0, so that the text is split"]
            raise HiggsError(
                f"Text and voice take {len(prompt.ids)} of {self._loaded.context} positions, which leaves less than "
                f"a second for speech. {', or '.join(remedies)}."
            )
        return prompt

    def _run(self, runner, prompts: list, first: int):
        self._warnings += runner.notes
        rows = min(runner.state.batch, len(prompts))
        self._how = self._loaded.how(runner) + (f", {rows} chunks at a time" if rows > 1 else "")
        self._sound.stream.in_turn = rows == 1
        # A voice made of this text's first line is of no use to the next call.
        prefixes = self._loaded.prefixes if self._voice is self._given else PrefixCache(runner.pool, 1)
        with Decoding(
            self._loaded.talker, *runner, prompts, self._params, first, self._tick, self._sound.wanted, prefixes
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
        most = min(_ANCHOR_FRAMES, self._loaded.context // 3)  # it may have run on, and others must fit behind it
        whole = self._lines[0].ended and len(codes) <= most
        codes = codes.masked_fill(codes >= CODEBOOK_SIZE, 0)[:most]
        return Voice(codes, chunk if whole else None, "first chunk")
