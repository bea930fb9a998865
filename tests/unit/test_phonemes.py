"""Mouth shapes by eSpeak's phonemes, with a stand-in for the phonemizer package and, where it is installed, with it."""

import logging
import sys
import types

import pytest
from higgs_tts.engine import Word, mouth_of
from higgs_tts.engine.core.optional import installed_version
from higgs_tts.engine.words import phonemes

KNOWN = {
    "en-us": {"through": "θ ɹ uː", "enough": "ɪ n ʌ f", "$12.50": "d ɑː l ɚ|t w ɛ l v", "—": ""},
    "fr-fr": {"beaucoup": "b o k u", "merci": "m ɛ ʁ s i", "est": "ɛ", "très": "t ʁ ɛ"},
    "ru": {"привет": "p rʲ i vʲ e t"},
}


class Backend:
    """Reads what KNOWN has, and knows no other voices."""

    def __init__(self, voice, language_switch, logger):
        if voice not in KNOWN:
            raise RuntimeError(f'language "{voice}" is not supported')
        self.voice = voice

    def phonemize(self, words, separator, strip):
        assert (separator["phone"], separator["word"], strip) == (" ", "|", True)
        return [KNOWN[self.voice][word] for word in words]


@pytest.fixture
def stand_in(monkeypatch):
    """As if the phonemizer package were installed."""
    for name, value in (("backend", {"EspeakBackend": Backend}), ("separator", {"Separator": dict})):
        monkeypatch.setitem(sys.modules, f"phonemizer.{name}", types.SimpleNamespace(**value))
    monkeypatch.setitem(sys.modules, "phonemizer", types.ModuleType("phonemizer"))
    monkeypatch.setattr(phonemes, "installed_version", lambda library: "3" if library == "phonemizer" else "")
    phonemes.reader_of.cache_clear()
    yield
    phonemes.reader_of.cache_clear()


def shapes_of(text):
    words = [Word(word, at, at + 1) for at, word in enumerate(text.split())]
    mouth = mouth_of(words, len(words))
    return "".join(cue.shape for cue in mouth.cues), mouth.method


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("text", "shapes", "method"),
    [
        ("through enough", "BFBCG", "phonemes"),  # by its letters "enough" would end open
        ("$12.50 through", "BDHEBFCHGBF", "phonemes"),
        ("— through", "BCBF", "phonemes and syllables"),
        ("merci beaucoup est très", "ACBAEBFCBC", "phonemes"),
        ("привет through", "ABGCBF", "phonemes"),
        ("안녕 through", "DBEBF", "letters and phonemes"),
    ],
)
def test_words_are_read_in_their_language(text, shapes, method):
    assert shapes_of(text) == (shapes, method)


@pytest.mark.usefixtures("stand_in")
def test_a_language_that_espeak_lacks_is_read_by_its_letters_and_logged_once(caplog):
    caplog.set_level(logging.INFO, "higgs_tts")
    for _ in range(2):
        assert shapes_of("Die Mühle und das schöne Öl")[1] == "letters"
    assert [record.message for record in caplog.records if "de" in record.message and "eSpeak" in record.message] == [
        'Higgs TTS: mouth shapes go by letters, because eSpeak NG does not read de: language "de" is not supported'
    ]


@pytest.mark.usefixtures("stand_in")
def test_a_phonemizer_without_espeak_is_no_error(monkeypatch):
    monkeypatch.setattr(Backend, "__init__", lambda *args, **kwargs: (_ for _ in ()).throw(RuntimeError("no eSpeak")))
    assert shapes_of("through")[1] == "letters"


def test_the_installed_espeak_reads_english():
    if not installed_version("phonemizer"):
        pytest.skip("the phonemizer package is not installed")
    languages = phonemes.languages_of(["through", "12"])
    assert phonemes.phonemes_of(languages) == {"through": ["θ", "ɹ", "uː"], "12": ["t", "w", "ɛ", "l", "v"]}
