"""Engine: one checkpoint on one device. Closing it frees everything."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ..checkpoint.codec_layout import encoder_shapes, fp32_sizes
from ..checkpoint.dtypes import auto_dtype, compute_dtype
from ..checkpoint.load import inspect, keeps_bf16, require_quantizable, require_whole, talker_sizes
from ..codec.model import open_encoder
from ..core.config import EngineConfig, SamplingParams
from ..core.devices import device_of
from ..core.errors import HiggsError
from ..core.sequence import Sequence as Prompt
from ..core.threads import few_threads, is_slow
from ..device.memory import device_bytes, free_bytes
from ..speech.result import SpeechResult
from ..talker import Talker
from ..talker.config import Aligned
from ..voice.clip import Wave
from ..voice.reference import reference_of
from ..voice.voice import Voice
from ..words.align import align, find_heads
from ..words.attention import Head, aligned_heads
from ..words.check import ChunkCheck
from ..words.heads import PROBE, PROBE_FRAMES, checked, keep_heads, kept_heads
from ..words.letters import mark_words
from ..words.whisper import WhisperAligner
from ..words.whisper_check import WhisperCheck
from ..words.word import Word
from .device_decoder import DeviceDecoder
from .loaded_model import LoadedModel, planned_bytes
from .planner import CheckpointPlanner
from .speech_api import SpeechAPI


class Engine(SpeechAPI):
    """Speaks with one checkpoint on one device.

    The constructor reads headers, and a head that the file stores. `open` puts weights, cache and codec on the device,
    and `close` frees them; both may be repeated. Raises HiggsError if the folder holds no usable checkpoint or the
    device does not exist.
    """

    def __init__(self, config: EngineConfig):
        self.device = device_of(config.device)
        if config.runner == "graph" and self.device.type != "cuda":
            raise HiggsError(f"CUDA graphs are on, but the device is {self.device}. Set graphs to auto or off.")
        self.checkpoint = inspect(config.model, config.codec, config.adapters)
        require_whole(self.checkpoint)
        if config.dtype == "auto":
            config = replace(config, dtype=auto_dtype(self.checkpoint, self.device))
        require_quantizable(self.checkpoint, config.weights)
        self.config = config
        self.dtype = compute_dtype(config.dtype, self.device)
        planner = CheckpointPlanner(self.checkpoint, config)
        self.planner, self._builder = planner, planner.builder
        self._lock = threading.RLock()
        self._closing = self._speaking = self._drop_after = False
        self.loaded: LoadedModel | None = None  # None if closed; public for tests and benchmarks only
        self._heads: tuple[Head, ...] | None = None  # None until they were looked for
        self._whisper = WhisperAligner(Path(config.whisper), self.device) if config.whisper else None

    @property
    def family(self) -> str:
        return self.checkpoint.config.family

    @property
    def label(self) -> str:
        """Name of the device, for users."""
        return f"GPU {self.device.index} ({self.kind})" if self.device.type == "cuda" else self.kind

    @property
    def kind(self) -> str:
        """Name of the GPU model, or "CPU"."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    @property
    def opened(self) -> bool:
        return self.loaded is not None

    @functools.cached_property
    def planned_bytes(self) -> int:
        """Bytes that `open` takes on the device: weights, cache, buffers and codec decoder."""
        context = self.planner.context
        return planned_bytes(self.checkpoint, self.config, context, self.device, self.dtype, self.aligned)

    @functools.cached_property
    def _talker_bytes(self) -> int:
        narrow = keeps_bf16(self.checkpoint, self.device, self.dtype, self.config.weights)
        return sum(talker_sizes(self.checkpoint, self.dtype, self.config.weights, narrow))

    @property
    def encoder_bytes(self) -> int:
        """Bytes that `encode_voice` takes on the device while it runs."""
        return device_bytes(fp32_sizes(encoder_shapes(self.checkpoint.codec.config)), self.device)

    @torch.inference_mode()
    def open(self) -> None:
        """Load weights, cache and codec, and capture the step. Frees everything on failure."""
        with self._lock, self._on_device():
            if self.opened:
                return
            self._closing = self._drop_after = False
            context = self.planner.context
            self.loaded = LoadedModel(self.checkpoint, self.config, context, self.device, self.dtype, self.aligned)

    @torch.inference_mode()
    def trim(self) -> int:
        """Free cache and captures but keep the weights, and return the number of bytes freed.

        The next `speak` builds them again. Returns 0 while speech is running.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            if self.loaded is None or self._speaking or not (size := self.loaded.spare_bytes):
                return 0
            with self._on_device():
                before = free_bytes(self.device)
                self.loaded.trim()
                return max(0, free_bytes(self.device) - before) if self.device.type == "cuda" else size
        finally:
            self._lock.release()

    @property
    def held_bytes(self) -> int:
        """Bytes on the device between calls: `planned_bytes` plus cached prefixes; less after `trim`, 0 if closed."""
        loaded = self.loaded  # another thread may close it meanwhile
        return loaded.held_bytes if loaded is not None else 0

    def close(self) -> None:
        """Free everything. Waits for speech in another thread to stop at its next frame.

        Called from a callback of `speak`, it takes effect once that speech has stopped, at its next frame.
        """
        self._closing = True
        with self._lock, self._on_device():
            self._drop_after = self._speaking  # True only in a callback, which holds the lock
            if not self._speaking:
                self._drop()

    def _drop(self):
        loaded, self.loaded = self.loaded, None
        if loaded is not None:
            loaded.close()
        if self._whisper is not None:
            self._whisper.close()

    def _on_device(self):
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def __enter__(self) -> Engine:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @torch.inference_mode()
    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """Encode a reference clip [S] or [C, S] as a voice. The encoder is on the device for this call only.

        Raises HiggsError if the clip is silent, not finite, under 1 s or over 30 s.
        """
        clip, warnings = reference_of(wav, sample_rate)
        with self._lock, self._on_device():
            codec = self.checkpoint.codec
            with open_encoder(codec.config, codec.read("encoder", self.device), self.device) as encode:
                codes = encode(clip)
        return Voice(codes, (transcript or "").strip() or None, name, codec.config.name, warnings)

    def require_open(self) -> None:
        """Raise HiggsError if the engine is being closed."""
        if self._closing:
            raise HiggsError("The model was unloaded while it spoke. Run it again.")

    @property
    def is_closing(self) -> bool:
        """True if the engine is being closed, or is closed."""
        return self._closing or not self.opened

    @torch.inference_mode()
    def words(self, speech: SpeechResult) -> tuple[Word, ...]:
        with contextlib.suppress(HiggsError, torch.OutOfMemoryError):  # a full or closed device costs only exact times
            if heads := self.heads():
                return mark_words(self.words_by(heads, speech), speech.said)
            if self._whisper is not None:
                with self._talker():
                    return mark_words(self._whisper.align(speech), speech.said)
        return super().words(speech)

    @torch.inference_mode()
    def words_by(self, heads: Sequence[Head], speech: SpeechResult) -> tuple[Word, ...]:
        """Return the words of `words` by the attention of given heads."""
        with self._talker() as talker:
            return align(talker, self._builder, heads, speech)

    @torch.inference_mode()
    def heads(self) -> tuple[Head, ...]:
        """Return the talker's attention heads that follow the words. Empty if none aligns.

        The model's card or an earlier call names them. Else the talker speaks for some seconds, and they are looked for
        in that; not while it speaks for others. On a CPU a large talker would take minutes: it has none until a GPU has
        found them.
        """
        with self._lock:
            self._read_heads()
            if self._heads is None and not self._speaking and not is_slow(self.device, self._talker_bytes):
                self._heads = ()  # for the probe itself
                try:
                    params = SamplingParams(chunk_seconds=0, max_frames=PROBE_FRAMES, retries=0, check=False)
                    probe = self.speak(PROBE, params=params)
                    with self._talker() as talker:
                        self._heads = find_heads(talker, self._builder, probe)
                except BaseException:
                    self._heads = None
                    raise
                keep_heads(self.planner.fingerprint, self._heads)
            return self._heads or ()

    @property
    def aligned(self) -> Aligned:
        """The aligning heads known so far, whose queries decoding keeps."""
        self._read_heads()
        return aligned_heads(self._heads or ())

    def _read_heads(self) -> None:
        if self._heads is None:
            self._heads = checked(self.planner.card.word_heads, self.checkpoint.config)
        if self._heads is None:
            self._heads = kept_heads(self.planner.fingerprint, self.checkpoint.config)

    @contextlib.contextmanager
    def _talker(self) -> Iterator[Talker]:
        """Give one thread the talker, also while it speaks. Raises HiggsError if nothing is open."""
        with self._lock, self._on_device(), few_threads(self.device, self._talker_bytes):
            yield self._opened().talker

    @contextlib.contextmanager
    def decoding(self, on_wait: Callable[[], object] = lambda: None) -> Iterator[DeviceDecoder]:
        """Give one thread the decoder. Others that speak or close the engine wait. See `SpeechAPI.decoding`."""
        with self._lock, self._on_device(), few_threads(self.device, self._talker_bytes):
            loaded = self._opened()
            self._read_heads()
            heads = self._heads
            if self.device.type == "cuda":
                with contextlib.suppress(torch.cuda.OutOfMemoryError):  # then attention checks nothing
                    heads = self.heads()
            loaded.keep_queries(self.aligned)
            check = functools.partial(ChunkCheck, loaded.talker, self._builder, heads) if heads else None
            if check is None and self._whisper is not None:
                check = functools.partial(_whisper_check, self._whisper)
            self._speaking = True
            try:
                yield DeviceDecoder(loaded, self.encode_voice, self.require_open, check)
            finally:
                self._speaking = False
                if self._drop_after:
                    self._drop()

    def _opened(self) -> LoadedModel:
        if self.loaded is None:
            raise HiggsError("The engine is not open. Open it before speaking.")
        return self.loaded


def _whisper_check(whisper: WhisperAligner, sequence: Prompt) -> WhisperCheck:
    return WhisperCheck(whisper, sequence.text)
