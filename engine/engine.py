"""The engine: a checkpoint that can be opened on one device, speaks, and gives everything back when closed."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from .checkpoint.codec_layout import encoder_shapes, fp32_sizes
from .checkpoint.digest import fingerprint_of
from .checkpoint.load import inspect, require_quantizable, require_whole, talker_sizes
from .codec.model import encode_once
from .codec.waveform import Waveform
from .config import MAX_BATCH, EngineConfig, SamplingParams
from .decode.kept_codes import KeptCodes, SequenceStore
from .device import device_of
from .dtypes import auto_dtype, compute_dtype
from .errors import HiggsError
from .generation import Batch, generate
from .loaded_model import LoadedModel, planned_bytes
from .memory import device_bytes, free_bytes
from .prompt.builder import PromptBuilder
from .prompt.card import read_card
from .prompt.script import Turn
from .request import DialogueOptions, Listener, SpeechRequest
from .result import SpeechResult
from .threads import SMALL_BYTES, one_thread
from .voice.clip import Wave, check_clip, prepare_clip
from .voice.voice import Voice


class Engine:
    """Speaks with one checkpoint on one device.

    Making it reads headers only. `open` puts weights, cache and codec on the device, `close` drops them all; both may
    be called again. Raises HiggsError for a folder that holds no usable checkpoint or a device that is not there.
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
        self.card = read_card(self.checkpoint.folder)
        self.context = min(config.context, self.checkpoint.config.max_context)
        self._builder = PromptBuilder(self.checkpoint.tokenizer, self.checkpoint.config)
        self._lock = threading.RLock()
        self._closing = self._speaking = self._drop_after = False
        self._loaded: LoadedModel | None = None
        self._kept = KeptCodes()

    @property
    def family(self) -> str:
        return self.checkpoint.config.family

    def knows_tag(self, tag: str) -> bool:
        """Whether the checkpoint follows a control tag, as far as its files say."""
        return self._builder.knows(tag) and (self.card.tags is None or tag in self.card.tags)

    @property
    def fingerprint(self) -> str:
        """Stands for weights and precision: with voice, text and settings they decide what is said."""
        return fingerprint_of(self.checkpoint, self.config)

    @property
    def opened(self) -> bool:
        return self._loaded is not None

    @property
    def loaded(self) -> LoadedModel | None:
        """What is on the device, None when closed. For tests and benchmarks: speech is `speak`'s alone."""
        return self._loaded

    @functools.cached_property
    def planned_bytes(self) -> int:
        """Bytes that `open` takes on the device: weights, cache, buffers and the codec's decoder."""
        return planned_bytes(self.checkpoint, self.config, self.context, self.device, self.dtype)

    @property
    def encoder_bytes(self) -> int:
        """Bytes that `encode_voice` takes on the device while it runs."""
        return device_bytes(fp32_sizes(encoder_shapes(self.checkpoint.codec.config)), self.device)

    @torch.inference_mode()
    def open(self) -> None:
        """Puts everything that speaking needs on the device and captures the step. Frees what it took when it fails."""
        with self._lock, self._on_device():
            if self.opened:
                return
            self._closing = self._drop_after = False
            self._loaded = LoadedModel(self.checkpoint, self.config, self.context, self.device, self.dtype)

    @torch.inference_mode()
    def trim(self) -> int:
        """Gives up cache and captures but keeps the weights, and returns the bytes that this gave back.

        The next `speak` makes them anew. Returns 0 when speech is under way.
        """
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            if self._loaded is None or self._speaking or not (size := self._loaded.spare_bytes):
                return 0
            with self._on_device():
                before = free_bytes(self.device)
                self._loaded.trim()
                return max(0, free_bytes(self.device) - before) if self.device.type == "cuda" else size
        finally:
            self._lock.release()

    @property
    def held_bytes(self) -> int:
        """Bytes on the device between calls: `planned_bytes`, kept prefixes; less after `trim`, none when closed."""
        loaded = self._loaded  # another thread may close it meanwhile
        return loaded.held_bytes if loaded is not None else 0

    def close(self) -> None:
        """Gives everything back. Speech in another thread stops at its next frame, and is waited for.

        From inside a callback of `speak` it takes effect once that speech has stopped, at its next frame.
        """
        self._closing = True
        with self._lock, self._on_device():
            self._drop_after = self._speaking  # only a callback gets here while it does
            if not self._speaking:
                self._drop()

    def _drop(self):
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()

    def _few_threads(self):
        """One CPU thread for a model so small that more only wait for each other."""
        size = sum(talker_sizes(self.checkpoint, self.dtype, self.config.weights))
        is_small = self.device.type == "cpu" and size <= SMALL_BYTES
        return one_thread() if is_small else contextlib.nullcontext()

    def _on_device(self):
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def __enter__(self) -> Engine:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @torch.inference_mode()
    def encode_voice(self, wav: Wave, sample_rate: int, transcript: str | None = None, name: str = "") -> Voice:
        """A reference clip [S] or [C, S] -> a voice. The encoder is on the device for this call only.

        Raises HiggsError for a clip that is silent, not finite, under 1 s or over 30 s.
        """
        check_clip(wav, sample_rate)
        clip = prepare_clip(wav, sample_rate).to(self.device)
        with self._lock, self._on_device():
            codec = self.checkpoint.codec
            codes = encode_once(codec.config, codec.read("encoder", self.device), clip)
        return Voice(codes, (transcript or "").strip() or None, name, self.checkpoint.codec.config.name)

    @torch.inference_mode()
    def speak(
        self,
        text: str,
        voice: Voice | None = None,
        params: SamplingParams | None = None,
        scene: str | None = None,
        on_frame: Callable[[int, int], None] | None = None,
        on_audio: Callable[[torch.Tensor], None] | None = None,
        on_restart: Callable[[str], None] | None = None,
    ) -> SpeechResult:
        """Says `text`; the engine must be open.

        Long text is split at sentence ends into sequences that decode together; without a voice the first one is spoken
        alone and is the voice of the rest. `scene` is v2's description of the recording. `on_frame(done, expected)` is
        called after every step and may raise to cancel; the engine stays usable. `on_audio(wav)` gets the sound
        [n] float32, on the host and in order, as soon as it is final: of the first sequence while it is spoken, of
        others once nothing is wrong with them. `on_restart(why)`: the first came out badly, and all sound so far is
        void; without it, that one is not spoken again. Raises HiggsError for empty text, a prompt that does not fit the
        context, for a voice of another codec, and when the engine is closed meanwhile.
        """
        voices = {} if voice is None else {"": voice}
        return self._say((Turn("", text),), voices, params, scene, (on_frame, on_audio, on_restart), None)

    @torch.inference_mode()
    def speak_turns(
        self,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice] = MappingProxyType({}),
        params: SamplingParams | None = None,
        scene: str | None = None,
        on_frame: Callable[[int, int], None] | None = None,
        on_audio: Callable[[torch.Tensor], None] | None = None,
        on_restart: Callable[[str], None] | None = None,
        reuse: bool | SequenceStore = True,
        even: bool = True,
    ) -> SpeechResult:
        """Says a dialogue, all of its turns together; see `speak` for what both have.

        voices: by speaker. One without gets its own from seed and name: its first words are the voice of the rest.
        reuse: what this engine has said before comes from its codes, which stay on the host, or a caller's store has
        it, which gets every sequence once it is spoken. even: the result's turns are equally loud, but for settings;
        on_audio gets them as they are spoken. Raises HiggsError as `speak` does, and where no turn has a word.
        """
        kept = self._kept if reuse is True else None if reuse is False else reuse
        dialogue = DialogueOptions(kept, even)
        return self._say(turns, voices, params, scene, (on_frame, on_audio, on_restart), dialogue)

    def _say(
        self,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams | None,
        scene: str | None,
        callbacks: tuple[Callable | None, Callable | None, Callable | None],
        dialogue: DialogueOptions | None,
    ) -> SpeechResult:
        on_frame, on_audio, on_restart = callbacks
        with self._speech() as (loaded, waveform):

            def tick(done: int, expected: int):
                self.require_open()
                if on_frame is not None:
                    on_frame(done, expected)

            listener = Listener(tick, on_audio, on_restart)
            with self._request(waveform, turns, voices, params, scene, listener, dialogue) as request:
                speech = generate(loaded, request, waveform)
        # Asked of the whole text, not chunk by chunk: once a call, and a longer text tells its language better.
        of_text = self.card.warnings("\n".join(turn.text for turn in turns))
        warnings = *speech.warnings, *self.checkpoint.adapters.warnings, *of_text
        return replace(speech, warnings=tuple(dict.fromkeys(warnings)))

    @contextlib.contextmanager
    def together(self, rows: int = MAX_BATCH) -> Iterator[Batch]:
        """A batch of up to so many rows for requests that come and go; nothing else speaks meanwhile.

        For one thread, which looks by `require_open` whether to stop. Raises HiggsError when the engine is not open.
        """
        with (
            torch.inference_mode(),
            self._speech() as (loaded, waveform),
            loaded.runner_for(rows, self.context, alone=False) as runner,
            Batch(loaded, runner, waveform, self._request) as batch,
        ):
            yield batch

    def require_open(self) -> None:
        """Raises HiggsError when somebody closes the engine."""
        if self._closing:
            raise HiggsError("The model was unloaded while it spoke. Run it again.")

    @contextlib.contextmanager
    def _speech(self) -> Iterator[tuple[LoadedModel, Waveform]]:
        """While somebody speaks: what is on the device, and what makes sound."""
        with self._lock, self._on_device(), self._few_threads():
            if self._loaded is None:
                raise HiggsError("The engine is not open. Open it before speaking.")
            waveform = Waveform(self._loaded.decoder, self._loaded.pool)
            self._speaking = True
            try:
                yield self._loaded, waveform
            finally:
                waveform.close()
                self._speaking = False
                if self._drop_after:
                    self._drop()

    def _request(
        self,
        waveform: Waveform,
        turns: Sequence[Turn],
        voices: Mapping[str, Voice],
        params: SamplingParams | None,
        scene: str | None,
        listener: Listener,
        dialogue: DialogueOptions | None = None,
    ) -> SpeechRequest:
        for name, voice in voices.items():
            if voice.codec not in ("", self.checkpoint.codec.config.name):
                raise HiggsError(
                    f"The voice{f' of {name}' if name else ''} was made with a different model and does not work with "
                    "this one. Create it again from its clip."
                )
        size = self.context, self.checkpoint.config.codebooks
        return SpeechRequest(
            self._builder, size, waveform, turns, voices, params or SamplingParams(), scene, listener, dialogue
        )
