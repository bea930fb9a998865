"""Control tags of Higgs TTS 3 by name, and the guard that removes all other commands from user text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator

from ..core.config import MAX_NESTING
from ..core.errors import HiggsError, few, shown, shown_name
from ..files.plain_text import encodable

# All tags the model was trained on. Others are read aloud or spoil the speech.
# fmt: off
TAG_VALUES = {
    "emotion": (
        "elation", "amusement", "enthusiasm", "determination", "pride", "contentment", "affection", "relief",
        "contemplation", "confusion", "surprise", "awe", "longing", "arousal", "anger", "fear", "disgust", "bitterness",
        "sadness", "shame", "helplessness",
    ),
    "style": ("singing", "shouting", "whispering"),
    "prosody": (
        "speed_very_slow", "speed_slow", "speed_fast", "speed_very_fast", "pitch_low", "pitch_high",
        "expressive_high", "expressive_low", "pause", "long_pause",
    ),
    "sfx": ("cough", "laughter", "crying", "screaming", "burping", "humming", "sigh", "sniff", "sneeze"),
}
# fmt: on
TAGS = tuple(f"<|{category}:{value}|>" for category, values in TAG_VALUES.items() for value in values)

# Middle of the ranges in the model's documentation.
PAUSE_SECONDS = {"<|prosody:pause|>": 0.55, "<|prosody:long_pause|>": 1.1}

# Anything between <| and |>, and the short form <category:value>. Tolerates a missing bar on one side.
TAG_LIKE = re.compile(rf"<\|[^<>|\r\n]*\|>|<\|?(?:{'|'.join(TAG_VALUES)}):[^<>|\r\n]*\|?>")

_KNOWN = frozenset(TAGS)
_BY_VALUE = {tag[2:-2].partition(":")[2]: tag for tag in TAGS}


def canonical_tag(spelled: str) -> str | None:
    """Return `<|emotion:awe|>` for `<emotion:awe>` or `<|emotion:awe|>`. None for unknown tags."""
    tag = f"<|{spelled.strip('<|>')}|>"
    return tag if tag in _KNOWN else None


def delivery_slot(spelled: str) -> str | None:
    """Return the slot that a tag sets for the text after it: "emotion", "style", "speed", "pitch" or "expressive".

    None for effects and pauses, which happen once, and for unknown tags.
    """
    tag = canonical_tag(spelled)
    if tag is None or tag in PAUSE_SECONDS:
        return None
    category, _, value = tag[2:-2].partition(":")
    if category == "prosody":
        return value.partition("_")[0]
    return None if category == "sfx" else category


def suggest(spelled: str) -> str:
    """Return a suggestion for an unknown tag: the nearest known one, or all of its category, or ""."""
    category, _, value = spelled.strip("<|> ").casefold().rpartition(":")
    category, value = category.strip(), value.strip().replace(" ", "_")
    if near := difflib.get_close_matches(value, _BY_VALUE, n=1, cutoff=0.7):
        return f" Did you mean {_BY_VALUE[near[0]]}?"
    if category in TAG_VALUES:
        return f" Known {category} tags: {', '.join(TAG_VALUES[category])}."
    return ""


# Sounds and manners as people and other packs write them: word prefixes -> (tag, sound word).
_WRITTEN = {
    "laugh|chuckl|giggl": ("<|sfx:laughter|>", "Haha"),
    "sigh": ("<|sfx:sigh|>", "Ahh"),
    "cough": ("<|sfx:cough|>", "Ahem"),
    "cry|cries|cried|sob": ("<|sfx:crying|>", ""),
    "scream": ("<|sfx:screaming|>", "Aah"),
    "sniff": ("<|sfx:sniff|>", ""),
    "sneez": ("<|sfx:sneeze|>", "Achoo"),
    "hum(?:s|m|ming)?\\b": ("<|sfx:humming|>", "Hmm"),
    "burp": ("<|sfx:burping|>", ""),
    "whisper": ("<|style:whispering|>", ""),
    "shout|yell": ("<|style:shouting|>", ""),
    "sings?\\b|singing": ("<|style:singing|>", ""),
}
# Further manners in a speaker's parentheses: word prefixes -> tag.
_MANNERS = {
    "angr|anger|furious": "<|emotion:anger|>",
    "sad": "<|emotion:sadness|>",
    "happ(?:y|i)|joy|cheer|delight|elat": "<|emotion:elation|>",
    "excit|enthus": "<|emotion:enthusiasm|>",
    "afraid|fear|scared|frighten|terrif": "<|emotion:fear|>",
    "surpris|astonish": "<|emotion:surprise|>",
    "amus": "<|emotion:amusement|>",
    "proud|pride": "<|emotion:pride|>",
    "reliev|relief": "<|emotion:relief|>",
    "confus|puzzl": "<|emotion:confusion|>",
    "disgust": "<|emotion:disgust|>",
    "bitter": "<|emotion:bitterness|>",
    "asham": "<|emotion:shame|>",
    "very slow": "<|prosody:speed_very_slow|>",
    "slow": "<|prosody:speed_slow|>",
    "very (?:fast|quick)": "<|prosody:speed_very_fast|>",
    "fast|quick|hurr": "<|prosody:speed_fast|>",
}
_MANNER = [
    (re.compile(words, re.IGNORECASE), tag)
    for words, tag in [*((words, tag) for words, (tag, _) in _WRITTEN.items()), *_MANNERS.items()]
]
# Other notes in the same place in screenplays and transcripts: off screen, continued, a time.
_NO_MANNER = re.compile(r"[vo]\.? ?[osc]\.?|cont(?:['’]?d|inued|inuing)?\.?|off(?:[- ]?screen)?|[\d:.]+", re.IGNORECASE)
_MARKUP = re.compile(r"</?[A-Za-z][A-Za-z0-9-]{0,19}(?:\s[^<>]{0,200})?/?>")
_TOLD = 20  # maximum commands named in warnings
_DIRECTION = re.compile(
    rf"[\[(<*]\s*(?:{'|'.join(f'({words})' for words in _WRITTEN)})[\w ,]{{0,24}}[\])>*]", re.IGNORECASE
)


def is_spoken(text: str) -> bool:
    """True if a text has a letter, a digit or an effect. Other tags alone are silent."""
    effects = any((canonical_tag(match[0]) or "").startswith("<|sfx:") for match in TAG_LIKE.finditer(text))
    return effects or any(map(str.isalnum, TAG_LIKE.sub(" ", text)))


def every_tag(tag: str) -> bool:
    """Default of `knows_tag` for an unknown model: always True."""
    return True


def stage_directions(text: str, knows_tag: Callable[[str], bool] = every_tag) -> list[str]:
    """Return warnings about sounds and manners written as words, such as [laughs], which are read aloud.

    knows_tag: returns True if the model follows a control tag. Others are not suggested.
    """
    return list(few(warning for _, _, warning in find_directions(text, knows_tag)))


def find_directions(text: str, knows_tag: Callable[[str], bool] = every_tag) -> Iterator[tuple[int, int, str]]:
    """Yield (start, stop, warning) for each sound or manner of `stage_directions`."""
    meant = list(_WRITTEN.values())
    for match in _DIRECTION.finditer(text):
        tag, sound = meant[(match.lastindex or 1) - 1]
        remedy = f"Write {tag}{sound} instead" if knows_tag(tag) else f"Write {sound} instead" if sound else "Remove it"
        yield *match.span(), f'"{shown_name(match[0])}" is read aloud. {remedy}.'


def find_markup(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, stop, warning) for each SSML or HTML tag."""
    for match in _MARKUP.finditer(text):
        if not _DIRECTION.fullmatch(match[0]):
            yield (*match.span(), f"{shown(match[0])} is read aloud: SSML and HTML tags are not supported. Remove it.")


def manner_tags(manner: str) -> dict[str, str]:
    """Return part -> control tag for a manner in a few words. The tag is empty if there is none."""
    parts = [part.strip() for part in re.split(r"[,;/+]|\band\b", manner)]
    meant = {part: part.lower().replace(" ", "_") for part in parts if part and not _NO_MANNER.fullmatch(part)}
    return {
        part: _BY_VALUE.get(value) or next((tag for words, tag in _MANNER if words.match(part)), "")
        for part, value in meant.items()
    }


# A word with its signs, followed by another one; and a sentence end inside it.
_FIRST_WORD = re.compile(r"([^\s<]+)\s+(?=[^\s<])")
_STOP = re.compile("[.!?\u2026\u3002\uff01\uff1f]")


def after_first_word(cleaned: str) -> str:
    """Move leading emotion tags of clean text behind its first word, if another word follows.

    As the first token, a strong emotion can override the cloned voice.
    """
    leading, emotions, at = "", "", 0
    while match := TAG_LIKE.match(cleaned, at):
        if delivery_slot(match[0]) == "emotion":
            emotions += match[0]
        else:
            leading += match[0]
        at = match.end()
        while at < len(cleaned) and cleaned[at].isspace():
            at += 1
    word = _FIRST_WORD.match(cleaned, at) if emotions else None
    if word is None or not any(character.isalnum() or character == "_" for character in _STOP.split(word[1])[-1]):
        return cleaned
    return f"{leading}{word[1]} {emotions}{cleaned[word.end() :]}"


def left_out(command: str) -> str:
    """Return the warning about a token that only the engine may write."""
    return f"{command} was left out: the model takes it as a command, not as text."


class TextGuard:
    """Removes all commands from text except the checkpoint's control tags.

    reserved: names of all added tokens. without_tags: True for v2. source: the tokenizer's file, for warnings.
    """

    def __init__(self, reserved: Iterable[str], without_tags: bool, source: str):
        self._reserved, self.without_tags, self._source = frozenset(reserved), without_tags, source
        self._tags = frozenset() if without_tags else self._reserved & _KNOWN
        # Longest first, so that the longest name matches.
        names = [re.escape(name) for name in sorted(self._reserved, key=len, reverse=True)]
        self._suspect = re.compile(rf"({'|'.join([*names, TAG_LIKE.pattern])})([ \t]*)")
        # All begin alike, which spares trying each of them at every character.
        self._tag = re.compile(rf"((?=<\|)(?:{'|'.join(map(re.escape, self._tags)) or '(?!)'}))")

    def clean(self, text: str, warn: Callable[[str], None]) -> str:
        """Strip text, spell known tags in full, and remove everything else the model would take as a command."""

        left_out: dict[str, None] = {}  # ordered, each once

        def judge(match: re.Match) -> str:
            spelled, blank = match[1], match[2]
            if (tag := canonical_tag(spelled)) in self._tags:
                return tag + blank
            left_out[spelled] = None
            before = match.string[max(0, match.start() - 1) : match.start()]
            return "" if not before or before.isspace() else blank

        text = encodable(text)
        # A removal may join the ends of another command, so repeat until nothing changes.
        for _ in range(MAX_NESTING):
            before, text = text, self._suspect.sub(judge, text)
            if text == before:
                break
        else:
            raise HiggsError(f"The text contains nested commands, such as {shown(next(iter(left_out)))}. Remove them.")
        for spelled in list(left_out)[:_TOLD]:
            warn(self._complaint(spelled))
        if len(left_out) > _TOLD:
            warn(f"{len(left_out) - _TOLD:,} more commands and unknown tags were left out.")
        return text.strip()

    def complaints(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield (start, stop, warning) for each command that `clean` removes."""
        for match in self._suspect.finditer(text):
            if canonical_tag(match[1]) not in self._tags:
                yield *match.span(1), self._complaint(match[1])

    def split(self, cleaned: str) -> list[str]:
        """Split clean text into text and tags, whose join is the input. No piece is empty."""
        return [piece for piece in self._tag.split(cleaned) if piece]

    def is_tag(self, piece: str) -> bool:
        return piece in self._tags

    def speakable(self, cleaned: str) -> bool:
        """True if clean text has a letter, a digit or an effect. Delivery tags, pauses and signs alone are silent."""
        return any(
            piece not in PAUSE_SECONDS and delivery_slot(piece) is None
            if self.is_tag(piece)
            else any(character.isalnum() for character in piece)
            for piece in self.split(cleaned)
        )

    def has_text(self, cleaned: str) -> bool:
        """True if clean text has anything but tags and white space."""
        return any(piece.strip() and not self.is_tag(piece) for piece in self.split(cleaned))

    def _complaint(self, spelled: str) -> str:
        if canonical_tag(spelled) is None:
            if spelled in self._reserved:
                return left_out(spelled)
            return f"Unknown tag {shown_name(spelled)} was left out.{'' if self.without_tags else suggest(spelled)}"
        if self.without_tags:
            return f"{spelled} was left out: Higgs Audio v2 has no control tags, only Higgs TTS 3 does."
        return f"{spelled} was left out: {self._source} does not have this tag."
