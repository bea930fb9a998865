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
from ..codec.model import build_encoder
from ..core.config import FRAME_RATE, MOST_FILM_SECONDS
from ..core.errors import HiggsError
from ..core.threads import one_thread
from ..device.memory import drop
from ..files.file_list import write_file
from ..files.tensors import read_tensors
from ..preview.join_clips import pause_cuts
from ..prompt.lengths import misfit
from ..voice.clip import MAX_CLIP_SECONDS, MIN_CLIP_SECONDS, Wave, read_clip
from ..voice.reference import checked_reference, faults
from ..words.transcribe import transcriber
from .recordings import Recording
from .rows import Utterance
from .two_voices import voice_changes, with_two_voices

Hear = Callable[[Sequence[Wave], int], list[str]]
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

    keep: file for codes and transcripts, read first and then written. on_clip(done, all): called before each recording;
    may raise to cancel. Raises HiggsError if a file cannot be written.
    """
    kept, texts = _kept(keep)
    held: dict[str, torch.Tensor] = {}
    good: list[Utterance] = []
    changes: list[torch.Tensor] = []  # of the good ones
    refused: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        encode = functools.cache(lambda: stack.enter_context(_encoder(codec, device)))
        hear = functools.cache(lambda: stack.enter_context(transcriber(whisper, device)) if whisper else None)
        for done, recording in enumerate(recordings):
            on_clip(done, len(recordings))
            try:
                for part in _parts(recording, whisper is not None):
                    key = _key(part, codec.config.name)
                    voice = f"{key} voice"
                    if not {key, voice} <= kept.keys():
                        wav, rate = _sound(part)
                        texts[key] = part.text or _written(hear(), wav, rate)
                        with one_thread():  # operations on a clip are short
                            clip, checks = checked_reference(wav, rate)
                            if spoiled := faults(check for check in checks if check.name in ("level", "speech")):
                                raise HiggsError(spoiled[0])
                            kept |= {key: encode()(clip).to(torch.int16), voice: voice_changes(clip)}
                    held |= {key: kept[key], voice: kept[voice]}
                    text = part.text or texts[key]
                    if reason := misfit(text, len(held[key]) / FRAME_RATE):
                        refused[part.name] = reason
                    else:
                        good.append(Utterance(part.name, text, held[key].long()))
                        changes.append(held[voice])
            except HiggsError as error:
                refused[recording.name] = str(error)
    _read.cache_clear()
    write_file(keep, safetensors_bytes(held, {key: texts[key] for key in held if key in texts}))
    is_mixed = with_two_voices(changes)
    refused |= {one.name: _TWO_VOICES for one, mixed in zip(good, is_mixed, strict=True) if mixed}
    return CheckedClips(tuple(one for one, mixed in zip(good, is_mixed, strict=True) if not mixed), refused)


@contextlib.contextmanager
def _encoder(codec: CodecWeights, device: torch.device) -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    """Yield the encoder, clip [S] -> codes [T, K]. It is on the device until the end."""
    encoder = build_encoder(codec.config, codec.read("encoder", device))
    try:
        yield lambda clip: encoder.encode(clip.to(device)).cpu()
    finally:
        drop((*encoder.parameters(), *encoder.buffers()))
        if device.type == "cuda":
            torch.cuda.empty_cache()


def _written(hear: Hear | None, wav: Wave, rate: int) -> str:
    text = hear([wav], rate)[0] if hear is not None else ""
    if not text:
        why = "Whisper understands no words in it." if hear else "It has no transcript."
        raise HiggsError(f"{why} Write its words into a .txt file of the same name, or give a Whisper model.")
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
    """Yield a recording, or if it is long and is to be written down, its parts between pauses."""
    if recording.text or not may_cut:
        yield recording
        return
    wav, rate = _read(recording.path)
    if wav.shape[-1] <= MAX_CLIP_SECONDS * rate:
        yield recording
        return
    for start, stop in pairwise(pause_cuts(torch.as_tensor(wav), rate)):
        if MIN_CLIP_SECONDS <= (stop - start) / rate <= MAX_CLIP_SECONDS:
            name = f"{recording.name} at {start / rate:.1f} s"
            yield replace(recording, name=name, span=(start / rate, stop / rate))


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
