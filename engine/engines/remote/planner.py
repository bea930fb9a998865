"""Planner for servers, which know their model better than this machine does."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace

from ...core.config import FRAME_SAMPLES, ServerConfig
from ...core.errors import HiggsError
from ...prompt.card import ModelCard
from ...prompt.tags import TAGS
from ...speech.kept_codes import KeptCodes
from ...speech.request import SpeechRequest
from ...speech.speech_input import DialogueOptions, Listener, SpeechInput
from ...voice.voice import Voice
from ..planner import Planner
from .find import FoundServers
from .prompts import CONTEXT, NAMED, RemotePrompts, named_voice
from .server import Kind, Server


class RemotePlanner(Planner):
    """Plans text for all of these servers. Its codes are their samples (`audio/pcm.py`)."""

    context, codebooks = CONTEXT, FRAME_SAMPLES

    def __init__(self, found: FoundServers, config: ServerConfig):
        self._servers, self._config, self.kept = found.servers, config, KeptCodes()
        self.card = _common_card(self._servers)
        self.model = ", ".join(models_of(self._servers))
        without = [server.label for server in self._servers if server.kind is not Kind.OURS]
        self.prompts = RemotePrompts(" and ".join(without), self.knows_tag)

    @property
    def fingerprint(self) -> str:
        """Identifies the model by name, not the servers, so another server can finish a book."""
        models = [self._config.model] if self._config.model else models_of(self._servers)
        return hashlib.sha256(repr(("servers", models, self._config.voice)).encode()).hexdigest()

    def knows_tag(self, tag: str) -> bool:
        return tag in TAGS if (tags := self.card.tags) is None else tag in tags

    def check_voice(self, name: str, voice: Voice) -> None:
        if not (voice.is_sound or voice.codec == NAMED):
            raise HiggsError(
                f"The voice{f' of {name}' if name else ''} was made for a model on this machine, but a server needs "
                "the clip itself. Make the voice again from its clip, with Higgs TTS Server connected to Higgs Voice "
                "or Higgs Load Voice."
            )

    def request(self, what: SpeechInput, listener: Listener, dialogue: DialogueOptions | None = None) -> SpeechRequest:
        if self._config.voice:
            theirs = named_voice(self._config.voice)
            what = replace(what, voices={turn.speaker: theirs for turn in what.turns} | dict(what.voices))
        return super().request(what, listener, dialogue)


def models_of(servers: Iterable[Server]) -> list[str]:
    """Return the names of the servers' models, each once."""
    return list(dict.fromkeys(server.model for server in servers if server.model))


def _common_card(servers: Iterable[Server]) -> ModelCard:
    """Return the combined card of the servers' models: tags that all of them follow."""
    cards = [server.card for server in servers]
    tags = [card.tags for card in cards if card.tags is not None]
    languages = next((card.languages for card in cards if card.languages), None)
    known = tuple(tag for tag in TAGS if all(tag in some for some in tags)) if tags else None
    table = next((card.spell_out for card in cards if card.spell_out), "")
    return ModelCard(languages, known, any(card.one_voice for card in cards), spell_out=table)
