"""Servers as one engine: what nodes ask of an `Engine`, done elsewhere."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from .. import pcm
from ..config import FRAME_SAMPLES, SamplingParams, ServerConfig
from ..decode.kept_codes import KeptCodes
from ..errors import HiggsError
from ..interface import OnFrame, Speaking, SpeechInterface
from ..prompt.card import Card
from ..prompt.script import Turn
from ..prompt.tags import TAGS
from ..relay import SoundMaker
from ..request import DialogueOptions, Listener, SpeechRequest
from ..result import SpeechResult
from ..voice.clip import Wave, check_clip, prepare_clip
from ..voice.voice import Voice
from .address import read_addresses
from .dispatch import Dispatch, Done
from .find import Found, find_servers
from .prompts import CONTEXT, NAMED, RemotePrompts, RemoteSequence, named_voice
from .server import Kind, Server


class RemoteEngine(SpeechInterface):
    """Speaks as an `Engine` does, on servers; it takes no memory on a device.

    The chunks of a call lie in one queue, from which all servers are asked, several calls at a time. A server that
    fails gives back what it has not said, and the result's warnings say so. Whoever listens hears a chunk when it is
    whole.
    Raises HiggsError for addresses that are none.
    """

    device = torch.device("cpu")
    encoder_bytes = 0  # that making a voice takes on it

    def __init__(self, config: ServerConfig):
        self.config = config
        self._addresses = read_addresses(config.addresses, config.key_variable)
        self.kept = KeptCodes()
        self._last: Found | None = None

    def connect(self, on_wait: Callable[[], None] = lambda: None) -> Found:
        """Looks which servers are there, and what they are. on_wait() is called meanwhile and may raise to stop.

        Raises HiggsError where none can speak.
        """
        found = find_servers(self._addresses, self.config, on_wait)
        if self._last is not None and _models(self._last.servers) != _models(found.servers):
            self.kept.clear()
        self._last = found
        return found

    @property
    def found(self) -> Found:
        """The servers as they were when they were last asked."""
        return self._last or self.connect()

    @property
    def label(self) -> str:
        """What the models are called, and where they are."""
        servers = self.found.servers
        return f"{', '.join(_models(servers)) or 'model'} on {', '.join(server.label for server in servers)}"

    @property
    def card(self) -> Card:
        """What the servers' models have learned, all of them."""
        cards = [server.card for server in self.found.servers]
        tags = [card.tags for card in cards if card.tags is not None]
        languages = next((card.languages for card in cards if card.languages), None)
        known = tuple(tag for tag in TAGS if all(tag in some for some in tags)) if tags else None
        return Card(languages, known, any(card.one_voice for card in cards))

    def knows_tag(self, tag: str) -> bool:
        return tag in TAGS if (tags := self.card.tags) is None else tag in tags

    @property
    def fingerprint(self) -> str:
        """Stands for the model, as far as its name does. Not for the servers: another one may finish a book."""
        models = [self.config.model] if self.config.model else _models(self.found.servers)
        return hashlib.sha256(repr(("servers", models, self.config.voice)).encode()).hexdigest()

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """A reference clip [S] or [C, S] -> a voice that keeps its sound, since servers have codecs of their own.

        Raises HiggsError for a clip that is silent, not finite, under 1 s or over 30 s.
        """
        check_clip(wav, sample_rate)
        frames = pcm.to_frames(prepare_clip(wav, sample_rate))
        return Voice(frames, (transcript or "").strip() or None, name, pcm.CODEC)

    @contextlib.contextmanager
    def speaking(self, on_frame: OnFrame | None) -> Iterator[Speaking]:
        def wait():
            if on_frame is not None:
                on_frame(0, 1)

        run = _ServersRun(self.connect(wait), self.config)
        yield Speaking(FrameSounds(), on_frame or (lambda done, expected: None), run.speak)

    def request(
        self,
        waveform: SoundMaker,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams | None,
        scene: str | None,
        listener: Listener,
        dialogue: DialogueOptions | None = None,
    ) -> SpeechRequest:
        for name, voice in voices.items():
            if not (voice.is_sound or voice.codec == NAMED):
                raise HiggsError(
                    f"The voice{f' of {name}' if name else ''} holds codes of a model, and a server needs its sound. "
                    "Make it from its clip once more, with Higgs TTS Server connected to Higgs Voice or Higgs Load "
                    "Voice."
                )
        if self.config.voice:
            theirs = named_voice(self.config.voice)
            voices = {turn.speaker: theirs for turn in turns} | dict(voices)
        without = [server.label for server in self.found.servers if server.kind is not Kind.OURS]
        prompts, size = RemotePrompts(" and ".join(without), self.knows_tag), (CONTEXT, FRAME_SAMPLES)
        return SpeechRequest(
            prompts, size, waveform, turns, voices, params or SamplingParams(), scene, listener, dialogue
        )

    def with_warnings(self, speech: SpeechResult, turns: Sequence[Turn]) -> SpeechResult:
        of_text = self.card.warnings("\n".join(turn.text for turn in turns))
        return replace(speech, warnings=tuple(dict.fromkeys((*speech.warnings, *of_text))))


class _ServersRun:
    """One call."""

    def __init__(self, found: Found, config: ServerConfig):
        self._servers, self._config = list(found.servers), config
        self._warnings = list(found.warnings)
        self._chunks: Counter[Server] = Counter()

    def speak(self, request: SpeechRequest) -> SpeechResult:
        for sequences in request.stages():
            if sequences:
                self._say(request, [one for one in sequences if isinstance(one, RemoteSequence)])
            request.settle()
        speech = request.result()
        return replace(speech, warnings=tuple(dict.fromkeys((*self._warnings, *speech.warnings))))

    def _say(self, request: SpeechRequest, sequences: list[RemoteSequence]):
        """One stage, until no take of it is to be spoken again."""
        with Dispatch(self._servers, sequences, self._config) as dispatch:
            for done in dispatch:
                if done is not None:
                    _hand_over(request, done)
                dispatch.add(*(again for again in request.settle() if isinstance(again, RemoteSequence)))
                request.tick()
        self._warnings += [f"{server.label} {why} The others spoke its part." for server, why in dispatch.lost.items()]
        self._servers = [server for server in self._servers if server not in dispatch.lost]
        self._chunks.update(dispatch.chunks)
        request.decoded_by(_described(self._chunks), ())


class FrameSounds:
    """A `SoundMaker` of codes that are samples."""

    def sound(self, streamed: bool = False) -> FrameSound:
        """A new sound. None is heard before it is whole."""
        return FrameSound()


class FrameSound:
    """The sound of one chunk."""

    low_latency_frames = 0

    def __init__(self) -> None:
        self._frames: list[torch.Tensor] = []
        self.is_complete = False

    def push(self, codes: torch.Tensor) -> Iterable[None]:
        self._frames.append(codes)
        return ()

    def finish(self) -> None:
        """No more frames come."""
        self.is_complete = True

    def wav(self) -> torch.Tensor:
        """[n] float32."""
        return pcm.to_wav(torch.cat(self._frames)) if self._frames else torch.empty(0)


def _hand_over(request: SpeechRequest, done: Done):
    job, (frames, ended) = done
    job.codes.append(frames)
    job.num_generated = job.num_frames = len(frames)
    job.finished, job.ended = True, ended
    request.push(job, frames)


def _described(chunks: Mapping[Server, int]) -> str:
    counted = (f"{server.label} ({count} chunk{'s' if count > 1 else ''})" for server, count in chunks.items() if count)
    return ", ".join(counted)


def _models(servers: Iterable[Server]) -> list[str]:
    return list(dict.fromkeys(server.model for server in servers if server.model))
