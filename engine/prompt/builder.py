"""Prompts: text and voice to the talker's input ids, on the CPU.

v3  zero-shot   <|tts|> <|text|> TEXT <|audio|>
    clone       <|tts|> [<|ref_text|> TRANSCRIPT] <|ref_audio|> ROWS <|text|> TEXT <|audio|>
v2  a chat (system with scene, user, assistant, ...) that ends in an open audio turn and the seed row. A voice with a
    transcript is an earlier turn, as in training. A voice without one is in the scene as "SPEAKER0:", the only form
    that needs no transcript.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..core.codes import BOC
from ..core.config import SamplingParams
from ..core.errors import HiggsError
from ..core.sequence import Sequence
from ..talker.config import ModelConfig
from ..voice.voice import Voice
from .card import ModelCard
from .chunking import estimate_frames
from .lengths import bounds_of
from .said import SaidText
from .sequences import Prompts
from .tags import after_first_word
from .tokenizer import REF_TEXT, Vocabulary

SYSTEM_TEXT = "Generate audio following instruction."
DEFAULT_SCENE = "Audio is recorded from a quiet room."

_LEAD = "\n\n"  # after a header of a chat, tokenized in one string with the text

# Audio rows of v3 replace the embeddings at their positions, so any id serves.
FILLER = 0

FLAT_TOKENS = ("<|tts|>", "<|text|>", "<|audio|>", "<|ref_audio|>")
CHAT_TOKENS = (
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|audio_out_bos|>",
    "<|audio_eos|>",
    "<|AUDIO_OUT|>",
    "<|reserved_special_token_6|>",
)
# Written as plain text if the tokenizer lacks them, as in all reference implementations.
SCENE_MARKS = ("<|scene_desc_start|>", "<|scene_desc_end|>")


class PromptBuilder(Prompts):
    """Builds prompts for one checkpoint. Raises HiggsError if its tokenizer.json is unsuitable.

    card: what the checkpoint has learned.
    """

    def __init__(self, tokenizer_path: str | Path, config: ModelConfig, card: ModelCard = ModelCard()):  # noqa: B008
        self._vocabulary = vocabulary = Vocabulary(Path(tokenizer_path), config)
        super().__init__(vocabulary.guard, card)
        self.config, self._family = config, vocabulary.family
        vocabulary.require(CHAT_TOKENS if self._family.is_chat else FLAT_TOKENS)

    def notes(self) -> tuple[str, ...]:
        return tuple(self._vocabulary.lacks())

    def build(
        self,
        text: str,
        voice: Voice | None = None,
        scene: str | None = None,
        params: SamplingParams = SamplingParams(),  # noqa: B008 - it is immutable
        index: int = 0,
    ) -> Sequence:
        """Build the sequence for `text`, ready for a scheduler.

        Args:
            text: text to speak.
            voice: speaker's voice.
            scene: description of the recording (v2 only). None is a quiet room, "" omits it.
            params: see Sequence.
            index: see Sequence.

        Raises:
            HiggsError: if there is nothing to speak, or a voice does not fit the model.
        """
        writer, spoken = _Writer(self._vocabulary), self.spell_out(text).text
        self._write(writer, self._read(writer, text, voice).text, voice, scene)
        sequence = writer.finish()
        sequence.text, sequence.spoken_text, sequence.voice = text, spoken, voice
        sequence.params, sequence.index, sequence.scene = params, index, scene
        sequence.bounds, sequence.expected = bounds_of(spoken), estimate_frames(spoken)
        return sequence

    def measure(
        self, text: str, voice: Voice | None = None, scene: str | None = None, is_rough: bool = False
    ) -> tuple[int, int]:
        writer = _Writer(self._vocabulary)
        content = self._read(writer, text, None).text
        self._write(writer, "a", voice, scene)
        if is_rough:  # a token has a byte at least, and normalising may triple those of a character
            return len(writer.finish()), len(content) if content.isascii() else 3 * len(content.encode())
        lead = _LEAD if self._family.is_chat else ""
        letter, whole = (len(self._vocabulary.encode(lead + written, writer.warn)) for written in ("a", content))
        return len(writer.finish()), max(0, whole - letter)

    def read_text(self, sequence: Sequence) -> tuple[SaidText, list[tuple[int, int]]]:
        """Return the text that the talker reads, and the written characters (start, stop) of tokens from `prefix` on.

        Of the tokens that belong to the prompt alone, a start is negative, or there is none.
        """
        writer = _Writer(self._vocabulary)
        content, lead = self._read(writer, sequence.text, sequence.voice), _LEAD if self._family.is_chat else ""
        located = self._vocabulary.located(lead + content.text, writer.warn)
        return content, [content.as_written(start - len(lead), stop - len(lead)) for _, start, stop in located]

    def _read(self, writer: _Writer, text: str, voice: object | None) -> SaidText:
        """Return the text that the talker reads in a voice."""
        content = self._content(text, writer.warn)
        return self.spell_out(content if voice is None or self._family.is_chat else after_first_word(content))

    def _write(self, out: _Writer, content: str, voice: Voice | None, scene: str | None) -> None:
        write = self._write_chat if self._family.is_chat else self._write_flat
        write(out, content, voice, scene)

    def _write_flat(self, out: _Writer, content: str, voice: Voice | None, scene: str | None) -> None:
        if scene and scene.strip():
            out.warn(f"{self._family.title} does not use scene descriptions, so scene was left out.")
        out.token("<|tts|>")
        if voice is not None:
            transcript = out.clean(voice.transcript or "")
            if transcript and REF_TEXT not in self._vocabulary.added:
                out.warn(f"The transcript was left out: {self._vocabulary.path} has no {REF_TEXT} token.")
            elif transcript:
                out.token(REF_TEXT).text(transcript)
            rows = self._family.delay(self._codes(voice))
            out.token("<|ref_audio|>").audio(rows, [FILLER] * len(rows))
        out.token("<|text|>").part().text(content).token("<|audio|>")

    def _write_chat(self, out: _Writer, content: str, voice: Voice | None, scene: str | None) -> None:
        scene = out.clean(DEFAULT_SCENE if scene is None else scene)
        transcript = out.clean(voice.transcript or "") if voice is not None else ""
        out.token("<|begin_of_text|>")
        self._header(out, "system").text(SYSTEM_TEXT)
        if voice is not None and not transcript:
            out.text("\n\n").mark(SCENE_MARKS[0]).text(f"\n{scene or DEFAULT_SCENE}\n\nSPEAKER0: ")
            self._clip(out, voice).text("\n").mark(SCENE_MARKS[1])
        elif scene:
            out.text("\n\n").mark(SCENE_MARKS[0]).text(f"\n{scene}\n").mark(SCENE_MARKS[1])
        out.token("<|eot_id|>")
        if voice is not None and transcript:
            self._header(out, "user").text(transcript).token("<|eot_id|>")
            self._clip(self._header(out, "assistant"), voice).token("<|eot_id|>")
        self._header(out, "user").part().text(content).token("<|eot_id|>")
        self._header(out, "assistant").token("<|audio_out_bos|>")
        # The seed row starts speech: BOC in every codebook.
        seed = torch.full((1, self.config.codebooks), BOC, dtype=torch.int64)
        out.audio(seed, [self._vocabulary.added["<|AUDIO_OUT|>"]])

    def _header(self, out: _Writer, role: str) -> _Writer:
        return out.token("<|start_header_id|>").text(role).token("<|end_header_id|>").text(_LEAD)

    def _clip(self, out: _Writer, voice: Voice) -> _Writer:
        codes = self._codes(voice)
        rows, tail = self._family.delay(codes), codes.shape[1] - 1
        special = self._vocabulary.added
        ids = [special["<|AUDIO_OUT|>"]] * (len(rows) - tail) + [special["<|reserved_special_token_6|>"]] * tail
        return out.token("<|audio_out_bos|>").audio(rows, ids).token("<|audio_eos|>")

    def _codes(self, voice: Voice) -> torch.Tensor:
        codes = voice.codes
        if codes.shape[1] != self.config.codebooks:
            raise HiggsError(
                f"The voice has {codes.shape[1]} codebooks, but the model has {self.config.codebooks}. "
                "Create the voice again with this model."
            )
        return codes


class _Writer:
    """Collects one prompt. Adjacent text is joined and tokenized as one string."""

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._ids: list[int] = []
        self._audio: list[tuple[int, torch.Tensor]] = []
        self._warnings: dict[str, None] = {}  # ordered, each once
        self._text = ""
        self._prefix = 0

    def warn(self, message: str) -> None:
        self._warnings[message] = None

    def clean(self, text: str) -> str:
        return self._vocabulary.guard.clean(text, self.warn)

    def text(self, text: str) -> _Writer:
        self._text += text
        return self

    def token(self, name: str) -> _Writer:
        self._flush()
        self._ids.append(self._vocabulary.added[name])
        return self

    def mark(self, name: str) -> _Writer:
        """Write a token if the tokenizer has it, else its spelling as plain text."""
        return self.token(name) if name in self._vocabulary.added else self.text(name)

    def audio(self, rows: torch.Tensor, ids: list[int]) -> _Writer:
        """Write delayed codes [n, K] at the next n positions, over ids [n]."""
        self._flush()
        self._audio.append((len(self._ids), rows))
        self._ids += ids
        return self

    def part(self) -> _Writer:
        """End the prefix after the last token. Pending text belongs to the spoken part."""
        self._prefix = len(self._ids)
        return self

    def finish(self) -> Sequence:
        self._flush()
        self._vocabulary.check(self._ids)
        return Sequence(self._ids, tuple(self._audio), tuple(self._warnings), self._prefix)

    def _flush(self) -> None:
        text, self._text = self._text, ""
        if text:
            self._ids += self._vocabulary.encode(text, self.warn)
