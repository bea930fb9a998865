"""Words as eSpeak NG's phonemes, where it and the phonemizer package are installed, as by packs for Kokoro."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Iterable, Mapping

from ..core.errors import HiggsError
from ..core.optional import import_optional, installed_version
from ..prompt.language import foreign

log = logging.getLogger("higgs_tts")
_quiet = log.getChild("phonemizer")  # it warns of each number, which is several words to it
_quiet.setLevel(logging.ERROR)
Read = Callable[[list[str]], list[str]]  # words -> their phonemes, separated by spaces

# Languages as `foreign` names them -> eSpeak's voices. It misreads Chinese and Japanese.
_VOICES = {
    **{"English": "en-us", "German": "de", "French": "fr-fr", "Spanish": "es", "Italian": "it", "Portuguese": "pt-br"},
    **{"Dutch": "nl", "Swedish": "sv", "Cyrillic": "ru", "Greek": "el", "Arabic": "ar", "Devanagari": "hi"},
}
_LATIN = ("en", "de", "fr", "es", "it", "pt", "nl", "sv")


def languages_of(words: Iterable[str]) -> dict[str, str]:
    """Return the language of each word. Those in Latin script have one together, English in doubt."""
    words = dict.fromkeys(words)
    latin = " ".join(word for word in words if re.search("[A-Za-z]", word))
    ours = next(iter(foreign(latin, ["en"])), "English") if latin else ""
    return {word: next(iter(foreign(word, _LATIN)), ours) for word in words}


def phonemes_of(languages: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the phonemes (IPA) of each word that can be read: none without eSpeak NG, or in a language it misreads."""
    if not installed_version("phonemizer") and not installed_version("phonemizer-fork"):
        return {}
    groups: dict[str, list[str]] = {}
    for word, language in languages.items():
        groups.setdefault(language, []).append(word)
    phonemes = {}
    for language, group in groups.items():
        read = reader_of(_VOICES[language]) if language in _VOICES else None
        if read is not None:
            phonemes |= {word: ipa.split() for word, ipa in zip(group, read(group), strict=True) if ipa.split()}
    return phonemes


@functools.lru_cache
def reader_of(voice: str) -> Read | None:
    """Return what reads words in a voice, or None if the installed eSpeak NG cannot."""
    try:
        backend = import_optional("phonemizer.backend", "EspeakBackend")
        separator = import_optional("phonemizer.separator", "Separator")(phone=" ", word="|", syllable="")
        reader = backend(voice, language_switch="remove-flags", logger=_quiet)
    except (HiggsError, RuntimeError) as error:
        log.info("Higgs TTS: mouth shapes go by letters, because eSpeak NG does not read %s: %s", voice, error)
        return None
    return lambda words: [ipa.replace("|", " ") for ipa in reader.phonemize(words, separator=separator, strip=True)]
