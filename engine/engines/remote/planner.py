"""Planner for servers, which know their model better than this machine does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from ...audio import pcm
from ...core.config import FRAME_SAMPLES, SAMPLE_RATE, ServerConfig
from ...core.errors import HiggsError
from ...prompt.card import ModelCard
from ...prompt.tags import TAGS
from ...speech.kept_codes import KeptCodes
from ...speech.request import SpeechRequest
from ...speech.speech_input import Listener, SpeechInput
from ...voice.clip import Wave
from ...voice.voice import Voice
from ..planner import Planner
from .find import FoundServers
from .prompts import CONTEXT, NAMED, RemotePrompts, named_voice
from .server import Kind, Server

Encode = Callable[[Wave, int, str | None, str], Voice]
_VOICES_KEPT = 64


class RemotePlanner(Planner):
    """Plans text for all of these servers.

    Those of ours return codes; those of others samples instead (`audio/pcm.py`). encode: `RemoteEngine.encode_voice`.
    """

    def __init__(self, servers: FoundServers, config: ServerConfig, encode: Encode):
        self._servers, self._config, self._wire, self._encode = servers.servers, config, servers.wire, encode
        self.kept = KeptCodes()
        self.card = _common_card(self._servers)
        self.model = ", ".join(models_of(self._servers))
        without = [server.label for server in self._servers if server.kind is not Kind.OURS]
        prompts = partial(RemotePrompts, " and ".join(without))
        if (wire := servers.wire) is None:
            self.context, self.codebooks, self.codec = CONTEXT, FRAME_SAMPLES, pcm.CODEC
            self.prompts = prompts(ModelCard(tags=self.card.tags))
        else:
            self.context, self.codebooks, self.codec = wire.context, wire.codebooks, wire.codec
            self.prompts = prompts(replace(self.card, chunk_seconds=wire.chunk_seconds))
        self._voices: dict[Voice, Voice] = {}  # clips, and what servers made of them

    def is_of(self, other: RemotePlanner) -> bool:
        """True if the servers have the same models, so that what was spoken may be kept."""
        return models_of(self._servers) == models_of(other._servers) and self._wire == other._wire

    @property
    def fingerprint(self) -> str:
        """Identifies the model by name, not the servers, so another server can finish a book."""
        if self._wire is not None:
            named = (self._wire.fingerprint, self._config.voice)
            return hashlib.sha256(repr(named).encode()).hexdigest() if named[1] else named[0]
        models = [self._config.model] if self._config.model else models_of(self._servers)
        return hashlib.sha256(repr(("servers", models, self._config.voice)).encode()).hexdigest()

    def check_voice(self, name: str, voice: Voice) -> None:
        is_known = voice.codec in (("", self.codec) if self._wire else ())
        if not (voice.is_sound or voice.codec == NAMED or is_known):
            of_what = "another model" if self._wire else "a model on this machine"
            raise HiggsError(
                f"The voice{f' of {name}' if name else ''} was made for {of_what}, but a server needs the clip "
                "itself. Make the voice again from its clip, with Higgs TTS Server connected to Higgs Voice or Higgs "
                "Load Voice."
            )

    def request(self, given: SpeechInput, listener: Listener) -> SpeechRequest:
        if self._config.voice:
            theirs = named_voice(self._config.voice)
            given = replace(given, voices={turn.speaker: theirs for turn in given.turns} | dict(given.voices))
        if self._wire is not None:
            given = replace(given, voices={name: self._coded(voice) for name, voice in given.voices.items()})
        return super().request(given, listener)

    def _coded(self, voice: Voice) -> Voice:
        """Return the codes of a voice that is a clip, which a server makes once."""
        if not voice.is_sound:
            return voice
        if voice not in self._voices:
            made = self._encode(voice.wav(), SAMPLE_RATE, voice.transcript, voice.name)
            self._voices = {**dict(list(self._voices.items())[-_VOICES_KEPT:]), voice: made}
        return self._voices[voice]


def models_of(servers: Iterable[Server]) -> list[str]:
    return list(dict.fromkeys(server.model for server in servers if server.model))


def _common_card(servers: Iterable[Server]) -> ModelCard:
    """Return the combined card of the servers' models: tags that all of them follow."""
    cards = [server.card for server in servers]
    tags = [card.tags for card in cards if card.tags is not None]
    languages = next((card.languages for card in cards if card.languages), None)
    known = tuple(tag for tag in TAGS if all(tag in some for some in tags)) if tags else None
    table = next((card.spell_out for card in cards if card.spell_out), "")
    return ModelCard(languages, known, any(card.one_voice for card in cards), spell_out=table)
