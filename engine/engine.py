"""The engine: a checkpoint that can be opened on one device, speaks, and gives everything back when closed."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from pathlib import Path

import torch

from .checkpoint import inspect, require_whole, talker_bytes
from .codec import StreamDecoder, build_encoder, decoder_shapes, encoder_shapes
from .config import CODEBOOK_SIZE, FRAME_RATE, EngineConfig, SamplingParams
from .errors import HiggsError
from .generate import Decoding
from .prompt import PromptBuilder
from .residency import Residency
from .speech import Speech
from .state import DecodeState
from .text import estimate_frames, split_text
from .voice import MAX_CLIP_SECONDS, Voice, check_clip, prepare_clip

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_ANCHOR_FRAMES = int(MAX_CLIP_SECONDS * FRAME_RATE)


class Engine:
    """Speaks with one checkpoint on one device.

    Making it reads headers only. `open` puts weights, cache and codec on the device, `close` drops them all; both may
    be called again. Raises HiggsError for a folder that holds no usable checkpoint or a device that is not there.
    """

    def __init__(self, config: EngineConfig):
        self.config = config
        self.device = _device(config.device)
        self.dtype = _dtype(config.dtype, self.device)
        if config.runner == "graph" and self.device.type != "cuda":
            raise HiggsError(f"CUDA graphs are on, but the device is {self.device}. Set graphs to auto or off.")
        self.checkpoint = inspect(Path(config.model), Path(config.codec) if config.codec else None)
        require_whole(self.checkpoint)
        self.context = min(config.context, self.checkpoint.config.max_context)
        self._builder = PromptBuilder(self.checkpoint.tokenizer, self.checkpoint.config)
        self._lock = threading.RLock()
        self._closing = False
        self._residency: Residency | None = None

    @property
    def family(self) -> str:
        return self.checkpoint.config.family

    @property
    def opened(self) -> bool:
        return self._residency is not None

    @functools.cached_property
    def planned_bytes(self) -> int:
        """Bytes that `open` takes on the device: weights, cache, buffers and the codec's decoder."""
        rope = 2 * self.context * self.checkpoint.config.head_dim * self.dtype.itemsize
        decoder = decoder_shapes(self.checkpoint.codec.config)
        return talker_bytes(self.checkpoint, self.dtype) + rope + self._state_bytes + _fp32_bytes(decoder)

    @functools.cached_property
    def _state_bytes(self) -> int:
        meta = torch.device("meta")
        return DecodeState(self.checkpoint.config, self.config.batch, self.context, meta, self.dtype).nbytes()

    @property
    def encoder_bytes(self) -> int:
        """Bytes that `encode_voice` takes on the device while it runs."""
        return _fp32_bytes(encoder_shapes(self.checkpoint.codec.config))

    @torch.inference_mode()
    def open(self):
        """Puts everything that speaking needs on the device and captures the step. Frees what it took when it fails."""
        with self._lock, self._on_device():
            if self.opened:
                return
            self._closing = False
            self._residency = Residency(self.checkpoint, self.config, self.context, self.device, self.dtype)

    @torch.inference_mode()
    def trim(self) -> int:
        """Gives up cache and captures but keeps the weights, and returns the bytes that this gave back.

        The next `speak` makes them anew. Returns 0 when speech is under way in another thread.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            if not self.opened or self._residency.state is None:
                return 0
            with self._on_device():
                before = self._free_bytes()
                size = self._residency.state.nbytes()
                self._residency.trim()
                return self._free_bytes() - before if self.device.type == "cuda" else size
        finally:
            self._lock.release()

    def _free_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 0

    @property
    def held_bytes(self) -> int:
        """Bytes on the device now: all of `planned_bytes`, less after `trim`, none when closed."""
        residency = self._residency
        if residency is None:
            return 0
        return self.planned_bytes - (self._state_bytes if residency.state is None else 0)

    def close(self):
        """Gives everything back. Speech in another thread stops at its next frame, and is waited for."""
        self._closing = True
        with self._lock, self._on_device():
            self._drop()

    def _drop(self):
        residency, self._residency = self._residency, None
        if residency is not None:
            residency.close()

    def _on_device(self):
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def __enter__(self):
        self.open()
        return self

    def __exit__(self, *exc):
        self.close()

    @torch.inference_mode()
    def encode_voice(self, wav, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """A reference clip [S] or [C, S] -> a voice. The encoder is on the device for this call only.

        Raises HiggsError for a clip that is silent, not finite, under 1 s or over 30 s.
        """
        check_clip(wav, sample_rate)
        clip = prepare_clip(wav, sample_rate).to(self.device)
        with self._lock, self._on_device():
            encoder = build_encoder(self.checkpoint.codec, self.device)
            codes = encoder.encode(clip).cpu()
            del encoder
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        return Voice(codes, (transcript or "").strip() or None, name)

    @torch.inference_mode()
    def speak(
        self,
        text: str,
        voice: Voice | None = None,
        params: SamplingParams | None = None,
        scene: str | None = None,
        on_frame=None,
    ) -> Speech:
        """Says `text`; the engine must be open.

        Long text is split at sentence ends; without a voice the first chunk is the voice of the rest. `scene` is v2's
        description of the recording. `on_frame(done, expected)` is called after every frame and may raise to cancel;
        the engine stays usable. Raises HiggsError for empty text, a prompt that does not fit the context, and when the
        engine is closed meanwhile.
        """
        params = params or SamplingParams()
        with self._lock, self._on_device():
            if not self.opened:
                raise HiggsError("The engine is not open. Open it before speaking.")
            return _Utterance(self, voice, params, scene, on_frame).say(text)


class _Utterance:
    """One call of `speak`: chunks of text one after another into one stream of audio."""

    def __init__(self, engine: Engine, voice, params: SamplingParams, scene, on_frame):
        self._engine, self._voice, self._params = engine, voice, params
        self._scene, self._on_frame = scene, on_frame
        self._residency = engine._residency
        self._stream = StreamDecoder(self._residency.decoder)
        self._warnings = list(self._residency.notes)
        self._wavs, self._codes, self._limited = [], [], []
        self._frames = 0

    def say(self, text: str) -> Speech:
        began = time.perf_counter()
        chunks = split_text(text, self._params.chunk_seconds)
        expected = [estimate_frames(chunk) for chunk in chunks]
        for index, chunk in enumerate(chunks):
            ended = self._say_chunk(chunk, index, sum(expected[index:]))
            if not ended:
                self._limited.append(index + 1)
            if self._voice is None and index == 0 and len(chunks) > 1:
                self._voice = self._anchor(chunk, ended)
        self._wavs.append(self._stream.finish().cpu())
        wav = torch.cat(self._wavs).clamp_(-1.0, 1.0)
        codes = torch.cat(self._codes)
        if not wav.isfinite().all():
            raise HiggsError("The model made a sound that is not a number. Load it with dtype fp32.")
        elapsed = time.perf_counter() - began
        warnings = tuple(dict.fromkeys(self._warnings))
        how = self._residency.how(1)
        return Speech(wav, codes, elapsed, len(chunks), self._stopped(len(chunks)), warnings, how)

    def _say_chunk(self, chunk: str, line: int, expected: int) -> bool:
        """Speaks one chunk into the stream; true when it ended by itself."""
        engine, said = self._engine, self._frames
        prompt = engine._builder.build(chunk, self._voice, self._scene)
        self._warnings += prompt.warnings
        room = engine.context - len(prompt.ids) - engine.checkpoint.config.codebooks
        if room < FRAME_RATE:
            raise HiggsError(
                f"Text and voice take {len(prompt.ids)} of {engine.context} positions, which leaves no second of "
                "speech. Use a shorter reference clip, split the text, or load the model with a larger context."
            )

        def on_step(frames):
            if engine._closing:
                raise HiggsError("The model was unloaded while it spoke. Run it again.")
            if self._on_frame is not None:
                self._on_frame(said + frames, max(said + frames, said + expected))

        state, runner = self._residency.lane(1)
        run = Decoding(self._residency.talker, state, runner, [prompt], self._params, line, on_step)
        for _, codes in run:
            self._codes.append(codes)
            self._wavs.append(self._stream.push(codes).cpu())
            self._frames += len(codes)
        return run.lines[0].ended

    def _anchor(self, chunk: str, ended: bool) -> Voice | None:
        """The first chunk as a voice; its transcript only where the whole of it is heard."""
        codes = torch.cat(self._codes)
        if not len(codes):
            return None
        whole = ended and len(codes) <= _ANCHOR_FRAMES
        codes = codes.masked_fill(codes >= CODEBOOK_SIZE, 0)[:_ANCHOR_FRAMES]
        return Voice(codes, chunk if whole else None, "first chunk")

    def _stopped(self, chunks: int) -> str:
        if not self._limited:
            return "end of speech"
        seconds = self._params.max_frames / FRAME_RATE
        where = f" in chunk {', '.join(map(str, self._limited))} of {chunks}" if chunks > 1 else ""
        return f"frame limit ({self._params.max_frames} frames, {seconds:.1f} s){where}"


def _device(name: str) -> torch.device:
    """The device of that name, always with its index where it has one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise HiggsError(f"'{name}' is no device. Use auto, cpu, or cuda:0 and so on.") from error
    if device.type != "cuda":
        return device
    if not torch.cuda.is_available():
        raise HiggsError(f"The device is {name}, but PyTorch sees no CUDA GPU here. Use cpu or auto.")
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise HiggsError(f"The device is {name}, but there are only {torch.cuda.device_count()} GPUs.")
    return torch.device("cuda", index)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "fp32" if device.type == "cpu" else "bf16"
    return _DTYPES[name]


def _fp32_bytes(shapes: dict) -> int:
    return sum(math.prod(shape) for shape in shapes.values()) * 4
