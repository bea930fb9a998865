"""Recordings checked, written down and encoded: what a training learns from. Codes are kept for the next run."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save as safetensors_bytes

from ..checkpoint.codec_layout import CodecWeights
from ..codec.model import open_encoder
from ..core.config import FRAME_RATE, MOST_FILM_SECONDS
from ..core.errors import HiggsError
from ..core.threads import one_thread
from ..files.file_list import write_file
from ..files.tensors import read_tensors
from ..prompt.lengths import misfit
from ..voice.clip import MAX_CLIP_SECONDS, MIN_CLIP_SECONDS, Wave, read_clip
from ..voice.join_clips import pause_cuts
from ..voice.reference import checked_reference, faults
from ..words.transcribe import identity_of, transcriber
from ..words.whisper_check import passages_heard
from .recordings import Recording
from .rows import Utterance
from .two_voices import voice_changes, with_two_voices

Hear = Callable[[Sequence[Wave], int], list[str]]
_HEARD_BY = " heard by"  # after a key: the Whisper
_OTHER_WORDS = "The recording's text does not have the words said here. Correct the text."
_TWO_VOICES = (
    "Two people seem to speak in it: its pitch and timbre change more than the voice of these clips does. Cut it, and "
    "keep one person's part."
)


@dataclass(frozen=True)
class CheckedClips:
    """Clips that can be learned, and clip -> why it was left out."""

    utterances: tuple[Utterance, ...]
    refused: dict[str, str]


def utterances_of(
    recordings: Sequence[Recording],
    codec: CodecWeights,
    device: torch.device,
    keep: Path,
    whisper: Path | None = None,
    on_clip: Callable[[int, int], object] = lambda done, all: None,
) -> CheckedClips:
    """Check recordings and encode them, those without a transcript once Whisper has heard them.

    keep: file for codes and transcripts, read first and then written, also if it is stopped. on_clip(done, all): called
    before each recording or part of one; may raise to stop. Raises HiggsError if a file cannot be written.
    """
    good: list[Utterance] = []
    changes: list[torch.Tensor] = []  # of the good ones
    refused: dict[str, str] = {}
    with _Known(keep, codec, device, whisper) as known:
        done, count = 0, len(recordings)
        for recording in recordings:
            keys: dict[Recording, str] = {}
            try:
                parts = [recording] if known.has(recording) else [*_parts(recording, whisper is not None)]
            except HiggsError as error:
                parts, refused[recording.name] = [], str(error)
            count += len(parts) - 1
            for part in parts:
                on_clip(done, count)
                done += 1
                try:
                    keys[part] = known.key(part)
                except HiggsError as error:
                    refused[part.name] = str(error)
            texts = [part.text or known.texts[key] for part, key in keys.items()]
            if recording.text and recording not in keys:
                texts = passages_heard(recording.text, texts)
            for (part, key), text in zip(keys.items(), texts, strict=True):
                codes = known.tensors[key].long()
                if reason := misfit(text, len(codes) / FRAME_RATE) if text else _OTHER_WORDS:
                    refused[part.name] = reason
                else:
                    good.append(Utterance(part.name, text, codes))
                    changes.append(known.tensors[_voice(key)])
    is_mixed = with_two_voices(changes)
    refused |= {one.name: _TWO_VOICES for one, mixed in zip(good, is_mixed, strict=True) if mixed}
    return CheckedClips(tuple(one for one, mixed in zip(good, is_mixed, strict=True) if not mixed), refused)


class _Known:
    """Codes, voices and words of recordings and their parts, by key: of an earlier run, or encoded and heard now.

    tensors: codes [T, K] int16, and changes of the voice, see `voice_changes`. texts: words, also those Whisper heard,
    and which one did. At the end the file has what was asked for; if it is stopped, all.
    """

    def __init__(self, file: Path, codec: CodecWeights, device: torch.device, whisper: Path | None):
        self._file, (self.tensors, self.texts) = file, _kept(file)
        self._codec, self._stack = codec.config.name, contextlib.ExitStack()
        self._used: list[str] = []
        self._whisper = identity_of(whisper) if whisper else ""
        enter = self._stack.enter_context
        self._encode = functools.cache(lambda: enter(open_encoder(codec.config, codec.read("encoder", device), device)))
        self._hear = functools.cache(lambda: enter(transcriber(whisper, device)) if whisper else None)

    def __enter__(self) -> _Known:
        return self

    def __exit__(self, stopped: type[BaseException] | None, *exc: object) -> None:
        self._stack.close()
        _read.cache_clear()
        names = [*self.tensors] if stopped else [name for key in self._used for name in (key, _voice(key))]
        words = {name: self.texts[name] for key in names for name in (key, key + _HEARD_BY) if name in self.texts}
        with contextlib.suppress(HiggsError) if stopped else contextlib.nullcontext():  # else it hides what stopped it
            write_file(self._file, safetensors_bytes({name: self.tensors[name] for name in names}, words))

    def has(self, part: Recording) -> bool:
        """True if a part is known, so that `key` reads nothing. Another Whisper may hear other words."""
        key = _key(part, self._codec)
        is_heard = part.text or self._whisper in ("", self.texts.get(key + _HEARD_BY))
        return bool(is_heard) and {key, _voice(key)} <= self.tensors.keys()

    def key(self, part: Recording) -> str:
        """Return a part's key. Reads and encodes it unless it is known. Raises HiggsError if it cannot be learned."""
        key = _key(part, self._codec)
        if not self.has(part):
            wav, rate = _sound(part)
            with one_thread():  # operations on a clip are short
                clip, checks = checked_reference(wav, rate)
                if spoiled := faults(check for check in checks if check.name in ("level", "speech")):
                    raise HiggsError(spoiled[0])
            self.texts[key] = part.text or _written(self._hear(), wav, rate)
            self.texts[key + _HEARD_BY] = self._whisper
            with one_thread():
                self.tensors[key] = self._encode()(clip).to(torch.int16)
                self.tensors[_voice(key)] = voice_changes(clip)
        self._used.append(key)
        return key


def _written(hear: Hear | None, wav: Wave, rate: int) -> str:
    if hear is None:
        raise HiggsError(
            "It has no transcript. Write its words into a .txt file of the same name, or give a Whisper model."
        )
    (text,) = hear([wav], rate)
    if not text:
        raise HiggsError("Whisper understands no words in it. Cut it out.")
    return text


@functools.lru_cache(maxsize=1)
def _read(path: Path) -> tuple[Wave, int]:
    return read_clip(path, MOST_FILM_SECONDS)


def _sound(part: Recording) -> tuple[Wave, int]:
    """Return (wav [C, S], Hz) of a recording's part."""
    wav, rate = _read(part.path)
    start, stop = part.span or (0.0, wav.shape[-1] / rate)
    return wav[..., round(start * rate) : round(stop * rate)], rate


def _parts(recording: Recording, may_cut: bool) -> Iterator[Recording]:
    """Yield a recording, or if it is long, its parts between pauses, which Whisper is to write down."""
    wav, rate = _read(recording.path)
    if recording.span or wav.shape[-1] <= MAX_CLIP_SECONDS * rate:
        yield recording
        return
    if not may_cut:
        raise HiggsError(
            f"It is {wav.shape[-1] / rate:.1f} s long, and a clip has {MAX_CLIP_SECONDS:g} s at most. Choose a Whisper "
            "model, with which it is cut."
        )
    for start, stop in pairwise(pause_cuts(torch.as_tensor(wav), rate)):
        if (stop - start) / rate >= MIN_CLIP_SECONDS:  # too long a part is refused by name
            name = f"{recording.name} at {start / rate:.1f} s"
            yield replace(recording, name=name, text="", span=(start / rate, stop / rate))


def _voice(key: str) -> str:
    return f"{key} voice"


def _key(part: Recording, codec: str) -> str:
    """Return a name for a part's codes that changes with its file, span and codec, but not with the folder of all."""
    state = part.path.stat()
    words = "" if part.text else "heard"
    key = f"{part.name} {state.st_size} {state.st_mtime_ns} {part.span} {codec} {words}"
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def _kept(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Return the codes and transcripts that an earlier run kept. A damaged file counts as none."""
    try:
        return read_tensors(path) if path.is_file() else ({}, {})
    except (OSError, SafetensorError):
        return {}, {}
