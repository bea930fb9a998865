"""Text tokenizer of a checkpoint. The only file that uses a tokenizer library."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tokenizers
from tokenizers import Tokenizer

from ..core.errors import HiggsError, shown_name
from ..files.json_file import parse_object, read_text
from ..talker import FAMILIES
from ..talker.config import ModelConfig
from .tags import TAGS, TextGuard, left_out

REMEDY = "Download the tokenizer.json that belongs to this checkpoint."
REF_TEXT = "<|ref_text|>"  # v3's; older checkpoints lack it


class Vocabulary:
    """The tokenizer, its added tokens by name, and the guard for user text."""

    def __init__(self, path: Path, config: ModelConfig):
        self.path, self._config, self.family = path, config, FAMILIES[config.family]
        source = read_text(path)  # tokenizers refuses a byte order mark
        data = parse_object(path, source)
        if not isinstance(data.get("model"), dict):
            raise HiggsError(f"{path} is not a tokenizer. {REMEDY}")
        with self._translated_errors("read"):
            self._tokenizer = Tokenizer.from_str(source)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.added: dict[str, int] = {token["content"]: token["id"] for token in data.get("added_tokens") or ()}
        # Added tokens of white space only are ordinary text.
        self._commands = {token: name for name, token in self.added.items() if name.strip()}
        self.guard = TextGuard(self._commands.values(), not self.family.has_tags, str(path))

    @contextlib.contextmanager
    def _translated_errors(self, done: str) -> Iterator[None]:
        """Translate bare Exceptions and Rust panics of `tokenizers` to HiggsError. Others propagate."""
        try:
            yield
        except BaseException as error:
            if type(error) is Exception or type(error).__module__ == "pyo3_runtime":
                why = f"tokenizers {tokenizers.__version__} ({shown_name(str(error))})"
                raise HiggsError(f"{self.path} cannot be {done} by {why}. Update tokenizers. {REMEDY}") from error
            raise

    def require(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.added:
                raise HiggsError(f"{self.path} has no token {name}, which {self._config.family} prompts need. {REMEDY}")
            self.check([self.added[name]])

    def lacks(self) -> Iterator[str]:
        """Yield a note per optional token that is missing, and on tokens outside the model's vocabulary."""
        missing = [name for name in TAGS if name not in self.added]
        if REF_TEXT not in self.added and not self.family.is_chat:
            yield f"{self.path} has no {REF_TEXT} token, so transcripts of reference clips are not used."
        if missing and self.family.has_tags:
            some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            yield f"{self.path} lacks {len(missing)} of the {len(TAGS)} control tags ({some}); they are left out."
        known = self._config.text_vocab
        beyond = sum(token >= known for token in self._tokenizer.get_vocab().values())
        if beyond:
            yield f"{beyond} tokens in {self.path} are outside the model's {known}; text that uses them is refused."

    def encode(self, text: str, warn: Callable[[str], None]) -> list[int]:
        """Return the ids of clean text, with tags as their tokens and no other commands."""
        return [token for token, _, _ in self.located(text, warn)]

    def located(self, text: str, warn: Callable[[str], None]) -> Iterator[tuple[int, int, int]]:
        """Yield (id, start, stop) of each token of `encode`. A character of several tokens is in all of them."""
        at = 0
        for piece in self.guard.split(text):
            if self.guard.is_tag(piece):
                yield self.added[piece], at, at + len(piece)
            else:
                with self._translated_errors("used"):
                    encoded = self._tokenizer.encode(piece, add_special_tokens=False)
                for token, (start, stop) in zip(encoded.ids, encoded.offsets, strict=True):
                    # A tokenizer that normalises may still turn look-alike characters into a command.
                    if token in self._commands:
                        warn(left_out(self._commands[token]))
                    else:
                        yield token, at + start, at + stop
            at += len(piece)

    def check(self, ids: list[int]) -> None:
        known = self._config.text_vocab
        if max(ids) >= known:
            raise HiggsError(f"{self.path} gives the id {max(ids)}, but the model has only {known} tokens. {REMEDY}")
