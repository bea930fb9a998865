"""Engine on HTTP servers."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from ...audio import pcm
from ...core.config import FRAME_SAMPLES, ServerConfig
from ...core.errors import HiggsError
from ...prompt.card import ModelCard
from ...prompt.script import Turn
from ...prompt.tags import TAGS
from ...speech.kept_codes import KeptCodes
from ...speech.request import SpeechRequest
from ...speech.result import SpeechResult
from ...speech.speech_input import DialogueOptions, Listener, SpeechInput
from ...voice.clip import Wave, reference_of
from ...voice.voice import Voice
from ..speech_api import SpeechAPI
from .address import read_addresses
from .find import FoundServers, find_servers
from .prompts import CONTEXT, NAMED, RemotePrompts, named_voice
from .server import Kind, Server
from .server_pool import ServerPool


class RemoteEngine(SpeechAPI):
    """Speaks on servers, without device memory here.

    Servers take chunks from a shared queue, several at a time. If a server fails, the others take over its unfinished
    chunks, and the result's warnings say so. Raises HiggsError if an address is invalid.
    """

    device = torch.device("cpu")
    context = CONTEXT
    encoder_bytes = 0  # device memory of `encode_voice`

    def __init__(self, config: ServerConfig):
        self.config = config
        self._addresses = read_addresses(config.addresses, config.key_variable)
        self.kept = KeptCodes()
        self._last: FoundServers | None = None

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing: connections end with each call."""

    def connect(self, on_wait: Callable[[], object] = lambda: None) -> FoundServers:
        """Find the servers and their models. on_wait() is called meanwhile and may raise to cancel.

        Raises HiggsError if no server can speak.
        """
        found = find_servers(self._addresses, self.config, on_wait)
        if self._last is not None and _models(self._last.servers) != _models(found.servers):
            self.kept.clear()
        self._last = found
        return found

    @property
    def found(self) -> FoundServers:
        """The servers found last, or now if there was no search yet."""
        return self._last or self.connect()

    @property
    def label(self) -> str:
        """Names of the models and servers, for users."""
        servers = self.found.servers
        return f"{', '.join(_models(servers)) or 'model'} on {', '.join(server.label for server in servers)}"

    @property
    def card(self) -> ModelCard:
        """Combined card of the servers' models: tags that all of them follow."""
        cards = [server.card for server in self.found.servers]
        tags = [card.tags for card in cards if card.tags is not None]
        languages = next((card.languages for card in cards if card.languages), None)
        known = tuple(tag for tag in TAGS if all(tag in some for some in tags)) if tags else None
        table = next((card.spell_out for card in cards if card.spell_out), "")
        return ModelCard(languages, known, any(card.one_voice for card in cards), spell_out=table)

    def knows_tag(self, tag: str) -> bool:
        return tag in TAGS if (tags := self.card.tags) is None else tag in tags

    @property
    def fingerprint(self) -> str:
        """Identifies the model by name, not the servers, so another server can finish a book."""
        models = [self.config.model] if self.config.model else _models(self.found.servers)
        return hashlib.sha256(repr(("servers", models, self.config.voice)).encode()).hexdigest()

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """Convert a reference clip [S] or [C, S] to a voice that holds PCM, because servers encode clips themselves.

        Raises HiggsError if the clip is silent, not finite, under 1 s or over 30 s.
        """
        clip, warnings = reference_of(wav, sample_rate)
        return Voice(pcm.to_frames(clip), (transcript or "").strip() or None, name, pcm.CODEC, warnings)

    @contextlib.contextmanager
    def decoding(self, on_wait: Callable[[], object] = lambda: None) -> Iterator[ServerPool]:
        yield ServerPool(self.connect(on_wait), self.config, self.encode_voice)

    def request(self, what: SpeechInput, listener: Listener, dialogue: DialogueOptions | None = None) -> SpeechRequest:
        for name, voice in what.voices.items():
            if not (voice.is_sound or voice.codec == NAMED):
                raise HiggsError(
                    f"The voice{f' of {name}' if name else ''} was made for a model on this machine, but a server "
                    "needs the clip itself. Make the voice again from its clip, with Higgs TTS Server connected to "
                    "Higgs Voice or Higgs Load Voice."
                )
        if self.config.voice:
            theirs = named_voice(self.config.voice)
            what = replace(what, voices={turn.speaker: theirs for turn in what.turns} | dict(what.voices))
        without = [server.label for server in self.found.servers if server.kind is not Kind.OURS]
        prompts = RemotePrompts(" and ".join(without), self.knows_tag)
        return SpeechRequest(prompts, (CONTEXT, FRAME_SAMPLES), what, listener, dialogue)

    def with_warnings(self, speech: SpeechResult, turns: Sequence[Turn]) -> SpeechResult:
        of_text = self.card.warnings("\n".join(turn.text for turn in turns))
        return replace(speech, warnings=tuple(dict.fromkeys((*speech.warnings, *of_text))))


def _models(servers: Iterable[Server]) -> list[str]:
    return list(dict.fromkeys(server.model for server in servers if server.model))
