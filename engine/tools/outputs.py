"""The output files of `say`: checked before the work, written together after it."""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from ..audio.mastering import TARGETS, master
from ..book.sound_file import BySoundfile, Tags
from ..core.config import SAMPLE_RATE, SubtitleParams
from ..core.errors import HiggsError
from ..core.optional import import_optional
from ..files.file_list import write_errors
from ..files.plain_text import encodable
from ..files.whole_file import replacing
from ..words.mouth import mouth_of
from ..words.word import Word, words_json
from .new_folder import writable

SOUNDS = (".wav", ".flac", ".mp3", ".ogg")


class Outputs:
    """The sound, its codes, subtitles, words and mouth shapes. Files are replaced once all new ones are complete.

    args: those of `say`. rate: Hz. told: the sound's loudness, if it was changed, and its file, for users. Raises
    HiggsError if a file cannot be written, or not in this format.
    """

    def __init__(self, args: argparse.Namespace, rate: int = SAMPLE_RATE, channels: int = 1):
        self.sound, self._rate, self._channels = writable(args.out, *SOUNDS), rate, channels
        self._codes = writable(args.codes, ".npy") if args.codes else None
        self._srt = writable(args.srt_out, ".srt") if args.srt_out else None
        self._words = writable(args.words, ".json") if args.words else None
        self._mouth = writable(args.mouth, ".json") if args.mouth else None
        self._check_names(args)
        self._target, self.summary = TARGETS[args.loudness], str(self.sound)
        self.srt_words = SubtitleParams(args.srt_words).srt_words
        if self.srt_words and not self._srt:
            raise HiggsError("--srt-words needs subtitles. Name their file with --srt-out, or omit --srt-words.")
        try:
            import_optional("soundfile", "SoundFile")(io.BytesIO(), "w", rate, channels, format=self._kind).close()
        except (RuntimeError, ValueError) as error:  # soundfile's own
            raise HiggsError(
                f"{self.sound} cannot be written at {rate} Hz with {channels} channels ({error}). Choose a name that "
                "ends in .wav."
            ) from error

    def _check_names(self, args: argparse.Namespace) -> None:
        """Raise HiggsError if a file would be replaced by another, or is one that is read."""
        given = args.voice, args.script, args.srt_in, args.film, args.bed, args.pronunciations
        known = {Path(one).resolve() for one in given if one}
        for path in filter(None, (self.sound, self._codes, self._srt, self._words, self._mouth)):
            if path.resolve() in known:
                raise HiggsError(f"{path} is named twice, and would be overwritten. Give another name.")
            known.add(path.resolve())

    @property
    def need_words(self) -> bool:
        """True if a file needs the words' times."""
        return bool(self._words or self._mouth or self.srt_words)

    def write(
        self,
        wav: torch.Tensor,
        srt: Callable[[], str],
        codes: torch.Tensor | None = None,
        words: Sequence[Word] | None = None,
    ) -> None:
        """Write the files. wav: [n] or [C, n]. srt: makes the subtitles. Raises HiggsError."""
        if self._target:
            wav, mastered = master(wav.view(self._channels, -1), self._rate, self._target)
            self.summary = f"{mastered}\n{self.sound}"
        with contextlib.ExitStack() as stack:  # the last is renamed first

            def partial(path: Path) -> Path:
                stack.enter_context(write_errors(path))
                return stack.enter_context(replacing(path))

            if self._srt:
                partial(self._srt).write_bytes(encodable(srt()).encode())
            if self._words and words is not None:
                partial(self._words).write_bytes(encodable(words_json(words)).encode())
            if self._mouth and words is not None:
                partial(self._mouth).write_bytes(mouth_of(words, wav.shape[-1] / self._rate).to_json().encode())
            if self._codes and codes is not None:
                np.save(data := io.BytesIO(), codes.numpy())  # to memory: np.save does not report every failed write
                partial(self._codes).write_bytes(data.getvalue())
            sound = BySoundfile(partial(self.sound), self._kind, Tags(""), self._rate, self._channels)
            try:
                sound.write(wav.t().numpy())
            finally:
                sound.close()

    @property
    def _kind(self) -> str:
        return self.sound.suffix[1:].upper()
