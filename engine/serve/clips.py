"""Voices of calls: by name from the folder, or made from a clip that comes with the call."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace

import torch

from ..audio.resample import check_rate
from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..prompt.lengths import misfit
from ..voice.clip import check_clip, decode_clip, read_reference, transcript_of
from ..voice.join_clips import JoinedClips, NamedClip, join_clips
from ..voice.voice import Voice
from .bodies import beside
from .calls import BadCall, Call, Clip
from .speaker import SpeakerThread
from .voices import VoiceFolder

_CLIPS_KEPT = 64


class CallVoices:
    """Finds or makes the voices of calls. Not thread-safe: belongs to the event loop."""

    def __init__(self, speaker: SpeakerThread, folder: VoiceFolder):
        self._speaker, self._folder = speaker, folder
        self._clips: OrderedDict[bytes, asyncio.Future[Voice]] = OrderedDict()  # of callers' clips, by digest

    async def of(self, call: Call) -> Voice | None:
        """Return the call's voice. Raises BadCall for an unknown name or an unusable clip."""
        if call.clip:
            return await self._cloned(call.clip)
        return await self.named(call.voice)

    async def named(self, name: str) -> Voice | None:
        """Return a voice by its name. None: the model's own. Raises BadCall for an unknown name."""
        if (known := await asyncio.to_thread(self._folder.file_of, name)) is None:
            return None
        path, voice = known
        if voice is None:
            sound, rate = await asyncio.to_thread(read_reference, path)
            transcript, _ = await asyncio.to_thread(transcript_of, path)
            voice = await self._encode((torch.from_numpy(sound), rate), transcript)
            await asyncio.to_thread(self._folder.keep, path, voice)
        return voice

    async def _cloned(self, clip: Clip) -> Voice:
        """Return the voice of a clip, encoding it once. A long text often comes as many calls with the same clip."""
        digest = await beside(sum(len(one.data) for one in clip.every), _digest, clip)
        made = self._clips.pop(digest, None)
        if made is None:
            made = self._joined(clip) if clip.more else self.made(clip.data, clip.transcript, "ref_audio")
            made = asyncio.ensure_future(made)
        self._clips[digest] = made
        while len(self._clips) > _CLIPS_KEPT:
            self._clips.popitem(last=False)
        try:
            return await asyncio.shield(made)  # a disconnect does not cancel it for other callers
        except (HiggsError, torch.OutOfMemoryError):  # retrying may work
            self._clips.pop(digest, None)
            raise

    async def made(self, data: bytes, transcript: str, param: str) -> Voice:
        """Return the voice of a sound file. Raises BadCall that names the field if the file is unusable."""
        clip = await asyncio.to_thread(_clip, data, param)
        return await self._encode(clip, transcript)

    async def _joined(self, clip: Clip) -> Voice:
        """Return the voice of several clips of a speaker. Its warnings also say which were left out, and why."""
        joined = await asyncio.to_thread(_join, clip)
        voice = await self._encode((joined.wav[None], SAMPLE_RATE), joined.transcript)
        return replace(voice, warnings=(*joined.doubts, *voice.warnings))

    async def _encode(self, clip: tuple[torch.Tensor, int], transcript: str) -> Voice:
        return await asyncio.wrap_future(self._speaker.encode(*clip, transcript))


def _digest(clip: Clip) -> bytes:
    return b"".join(hashlib.sha256(repr(one.transcript).encode() + one.data).digest() for one in clip.every)


def _clip(data: bytes, param: str) -> tuple[torch.Tensor, int]:
    try:
        clip = decode_clip(data)
        check_clip(*clip)
        check_rate(clip[1], "The clip")
    except HiggsError as error:
        raise BadCall(str(error), param) from error
    except RuntimeError as error:
        raise BadCall(f"the clip cannot be read as audio ({error}). Send WAV or FLAC.", param) from error
    return clip


def _join(clip: Clip) -> JoinedClips:
    def decoded() -> Iterator[NamedClip]:  # one by one, so that only one is held whole
        for number, one in enumerate(clip.every, 1):
            name = f"Reference {number}"
            try:
                yield NamedClip(*_clip(one.data, "references"), one.transcript, name)
            except BadCall as error:
                raise BadCall(f"{name}: {error}", error.param) from error

    try:
        return join_clips(decoded(), misfit)
    except HiggsError as error:
        raise BadCall(str(error), "references") from error
