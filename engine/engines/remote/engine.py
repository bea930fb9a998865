"""Engine on HTTP servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from ...audio import pcm
from ...core.config import ServerConfig
from ...core.errors import HiggsError
from ...voice.clip import Wave, check_clip
from ...voice.reference import reference_of
from ...voice.voice import Voice
from ..speech_api import SpeechAPI
from .address import read_addresses
from .chunk_calls import encoded_by
from .connections import Connections
from .find import FoundServers, find_servers
from .planner import RemotePlanner, models_of
from .server_pool import ServerPool, ServerSource
from .wire import Wire


class RemoteEngine(SpeechAPI):
    """Speaks on servers, without device memory here.

    Servers take chunks from a shared queue, several at a time. If a server fails, the others take over its unfinished
    chunks, and the result's warnings say so. Raises HiggsError if an address is invalid.
    """

    device = torch.device("cpu")
    encoder_bytes = 0  # device memory of `encode_voice`

    def __init__(self, config: ServerConfig):
        self.config = config
        self._addresses = read_addresses(config.addresses, config.key_variable)
        self._last: tuple[FoundServers, RemotePlanner] | None = None

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(self, *exc: object) -> None:
        """Do nothing: connections end with each call."""

    def connect(self, on_wait: Callable[[], object] = lambda: None) -> FoundServers:
        """Find the servers and their models. on_wait() is called meanwhile and may raise to cancel.

        Raises HiggsError if no server can speak.
        """
        servers = find_servers(self._addresses, self.config, on_wait)
        planner = RemotePlanner(servers, self.config, self.encode_voice)
        if self._last is not None and self._last[1].is_of(planner):
            planner.kept = self._last[1].kept
        self._last = servers, planner
        return servers

    @property
    def found(self) -> FoundServers:
        """The servers found last, or now if there was no search yet."""
        return self._last[0] if self._last else self.connect()

    @property
    def planner(self) -> RemotePlanner:  # pyright: ignore[reportIncompatibleVariableOverride] - it is never set
        """The planner for the servers found last."""
        if self._last is None:
            self.connect()
        assert self._last is not None
        return self._last[1]

    @property
    def label(self) -> str:
        """Names of the models and servers, for users."""
        servers = self.found.servers
        return f"{', '.join(models_of(servers)) or 'model'} on {', '.join(server.label for server in servers)}"

    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """Have a server encode a reference clip [S] or [C, S]. For servers of others, the voice holds its PCM.

        Raises HiggsError if the clip is silent, not finite, under 1 s or over 30 s.
        """
        transcript = (transcript or "").strip() or None
        if self._wired() is None:
            clip, warnings = reference_of(wav, sample_rate)
            return Voice(pcm.to_frames(clip), transcript, name, pcm.CODEC, warnings)
        check_clip(wav, sample_rate)
        return encoded_by(self.found.servers, (wav, sample_rate, transcript, name), Connections(), self.config.timeout)

    def _wired(self) -> Wire | None:
        """Return what the servers say of their model, if they encode clips for us. None without servers, too."""
        with contextlib.suppress(HiggsError):  # the call that speaks will tell
            return self.found.wire
        return None

    @contextlib.contextmanager
    def decoding(self, on_wait: Callable[[], object] = lambda: None) -> Iterator[ServerPool]:
        servers = self.connect(on_wait)
        encode = None if servers.wire else self.encode_voice
        yield ServerPool(ServerSource(servers.servers), self.config, encode, servers.warnings)
