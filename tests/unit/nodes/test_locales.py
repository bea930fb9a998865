"""Translations in locales/: complete, nothing left over, and only what ComfyUI and the page understand."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, EMBEDDED_NAME, MAX_WRITTEN, TARGETS, Voice, read_clip
from higgs_tts.engine.audio import pcm
from higgs_tts.engine.prompt.card import ModelCard
from higgs_tts.engine.prompt.tags import TextGuard
from higgs_tts.engine.speech.result import FLAWS
from higgs_tts.tests.translations import (
    DIGESTS,
    LANGUAGES,
    LOCALES,
    SERVER,
    TEMPLATES,
    digests,
    english,
    stale,
    template_texts,
    translations,
)

ROOT = pathlib.Path(__file__).resolve().parents[3]
every_language = pytest.mark.parametrize("language", LANGUAGES)
SAME = {"top_p", "top_k", "srt", "{seconds} s", "24 kHz, mono.", "{name}: {sentence}"}  # names, formats and units
SHARED = {
    "fr": {"script", "film", "{count} note", "{count} notes"},
    "es": {"clip"},
    "de": {"Tags", "Seed {seed}."},
    "pt-BR": {"Volume"},
}  # words of both languages
NAMES = {
    "flac",
    "wav",
    "mp3",
    "ogg",
    "m4b",
    "bf16",
    "fp32",
    "int8",
    "int4",
    "cpu",
    "model",
    "port",
    "Nguyen = Win",
    "3:1, 7:2",
    "1, 3-5",
    "narrator = Anna",
}  # no words
NAMES |= {name for name, target in TARGETS.items() if target}
ODD = re.compile(r"[|@{}]")  # special in ComfyUI's frontend, where names and tooltips are templates of vue-i18n
PLACE = re.compile(r"\{\w+\}")
BOOKS = {
    "Chinese": "他们沿着河边慢慢地走，谁也没有说话。",
    "Japanese": "わたしはまいにちほんをよみます。",
    "Korean": "우리는 강을 따라 천천히 걸었습니다.",
    "Cyrillic": "Они медленно шли вдоль реки и молчали.",
    "German": "Das ist nicht der Hund, und ich habe ihn auch nicht mit dir gesehen.",
    "French": "Je ne suis pas dans la maison, mais elle est avec nous pour vous.",
    "Spanish": "El perro no está en la casa, pero los niños son muy buenos y también.",
    "Portuguese": "Não é uma casa, mas você também está com ele, que não tem mais.",
    "Italian": "Non è una casa, ma anche gli altri sono qui con il mio amico, perché.",
}


@pytest.fixture
def said(schemas):
    return english(schemas)


@every_language
def test_every_sentence_is_translated_and_none_is_left_over(said, language):
    known = translations(language)
    assert said.keys() - known.keys() == set(), "fill them in with tests/translations.py"
    assert known.keys() - said.keys() == set(), "tests/translations.py takes them out"
    assert all(text.strip() for text in known.values())


def test_no_english_has_changed_since_it_was_translated(said):
    assert stale(said) == set(), "translate these again with tests/translations.py"
    assert json.loads(DIGESTS.read_text(encoding="utf-8")) == digests(said)


@every_language
def test_places_for_values_are_the_same(said, language):
    for keys, text in translations(language).items():
        assert sorted(PLACE.findall(text)) == sorted(PLACE.findall(said[keys])), keys
        if keys[:2] != ("main", "higgsTTS"):
            assert not ODD.search(text), keys


@every_language
def test_nothing_stays_english_but_names(said, language):
    same = {text for keys, text in translations(language).items() if text == said[keys]}
    assert same <= SAME | SHARED.get(language, set())


def test_a_text_of_a_template_is_found_in_whatever_language_it_was_saved():
    said = [(keys[-1], text) for one in LANGUAGES for keys, text in translations(one).items() if keys[:3] == TEMPLATES]
    texts = {text: text for text in template_texts()}
    for key, text in said:
        assert texts.setdefault(text, key) == key and "\n" not in text


def test_comfyui_s_folders_and_files():
    assert sorted(path.name for path in LOCALES.iterdir()) == sorted(LANGUAGES)
    for language in LANGUAGES:
        assert {path.name for path in (LOCALES / language).iterdir()} == {
            "nodeDefs.json",
            "main.json",
            "settings.json",
        }


@pytest.fixture
def server_sentences(schemas, server_routes, load_module, comfy, tmp_path):
    """Every sentence and word that the server gives the page to show, except errors about files."""
    return [
        *_hints(server_routes),
        *_voices(server_routes, tmp_path),
        *_clips(server_routes, tmp_path),
        load_module("sheet.takes").VOICELESS,
        *FLAWS.values(),
        *_options(schemas, load_module),
    ]


def _hints(ask):
    texts = [
        "<|emotion:angerr|> <|emotion:hapy|> <|qqqq|> [laughs] [cries] <b>x</b>",
        "[pause soon] [pause 99] [pause 90000]",
    ]
    texts += ["[pause 99 s]", "<|emotion:awe|>"]
    for text in texts:
        told = ask("text", {"kind": "text", "text": text, "model": EMBEDDED_NAME, "settings": {}}).data
        yield from (hint["says"] for hint in told["hints"])
    script = "Ann (whispering): Hi.\nBob: (He nods.) No.\nAnn (softly): Oh.\n[Bob|loud] Hi."
    told = ask("text", {"kind": "script", "text": script, "model": EMBEDDED_NAME, "settings": {}}).data
    assert len(told["hints"]) == 4
    yield from (hint["says"] for hint in told["hints"])
    for language, text in BOOKS.items():
        (note,) = ask("text", {"kind": "text", "text": text, "model": EMBEDDED_NAME, "settings": {}}).data["notes"]
        assert language in note
        yield note
    yield from re.findall(r"[A-Z]\w+", "English, " + ", ".join(BOOKS))
    yield ask("text", {"kind": "text", "text": "x" * (MAX_WRITTEN + 1), "model": "", "settings": {}}).data["error"]
    for without_tags in (False, True):
        guard = TextGuard(["<|im_start|>"], without_tags, "tokenizer.json")
        yield from (says for _, _, says in guard.complaints("<|im_start|> <|emotion:awe|> <|emotion:zzzzzzzz|>"))
    yield from ModelCard(tags=()).warnings("<|emotion:awe|>")
    for group in ask("tags", model="download: Higgs TTS 3 (4B)").data:
        yield from (group["name"], f"Goes {group['place']}.")


def _voices(ask, base):
    soundfile = pytest.importorskip("soundfile")
    root = base / "models" / "voices"
    root.mkdir(parents=True)
    soundfile.write(root / "long.wav", torch.zeros(8000 * 40).numpy(), 8000)
    Voice(torch.zeros(50, 8, dtype=torch.int64), None, "dora", "1+1").save(root / "dora.safetensors")
    Voice(pcm.to_frames(torch.zeros(24000)), "Hi.", "sound", pcm.CODEC).save(root / "sound.safetensors")
    return [voice["problem"] for voice in ask("voices", model=EMBEDDED_NAME).data if voice["problem"]]


def _clips(ask, base):
    """Yield what is told of clips, good and bad."""
    soundfile = pytest.importorskip("soundfile")
    folder, rate = base / "input", 24_000
    folder.mkdir(parents=True)
    wav, _ = read_clip(BUILT_IN_CLIPS / "oliver.flac")
    wav = torch.from_numpy(wav)
    seed = torch.Generator().manual_seed(1)
    tail = torch.randn(rate, generator=seed) * torch.exp(-5 * torch.arange(rate) / rate)
    room = torch.fft.irfft(torch.fft.rfft(wav, 1 << 18) * torch.fft.rfft(tail, 1 << 18))[:, : wav.shape[1]]
    for name, sound in {
        "silent": torch.zeros(1, 48_000),
        "tone": torch.sin(torch.arange(48_000) / 9)[None] / 2,
        "long": torch.ones(1, 31 * rate),
        "quiet": wav / 100,
        "loud": (8 * wav).clamp(-1, 1),
        "noisy": wav + 0.3 * wav.std() * torch.randn(wav.shape, generator=seed),
        "room": room / room.abs().max() / 2,
        "short": wav[:, :12_000],
        "cut": wav[:, :48_000],
    }.items():
        soundfile.write(folder / f"{name}.wav", sound.T.numpy(), rate)
        for words in ("", "Hi.", "More words than anybody can say in this time. " * 9):
            told = ask("clip/checks", {"clip": f"{name}.wav", "transcript": words}).data
            yield from filter(None, (told["misfit"], *(check["advice"] for check in told["checks"])))
    for given in ({"start": 61}, {"name": "../x"}):
        yield ask("clip/save", {"clip": "quiet.wav", "name": "x", **given}).data["error"]


def _options(schemas, load_module):
    """Yield the options and placeholders that are words. Voices and clips are names."""
    yield load_module("comfy.devices").ALL
    for schema in schemas.values():
        for socket in schema.inputs:
            yield from [socket.placeholder] if hasattr(socket, "placeholder") else []
            yield from socket.options if socket.kind == "Combo" and socket.args[0] not in ("voice", "clip") else []
        yield load_module("library.clip_files").LINKED


@every_language
def test_the_server_s_sentences_are_translated(server_sentences, language):
    keys = [keys[-1] for keys in translations(language) if keys[:3] == SERVER]
    fits = {key: re.compile(re.sub(r"\\\{\w+\\\}", "(.+?)", re.escape(key)), re.DOTALL) for key in keys}
    sentences = set(server_sentences) - NAMES
    used = {sentence: [key for key in keys if fits[key].fullmatch(sentence)] for sentence in sentences}
    assert [sentence for sentence, found in used.items() if not found] == []
    assert set(keys) - {key for found in used.values() for key in found} == set(), "nothing says this any more"
    assert [found for found in used.values() if len(found) > 1] == [], "it depends on their order which is taken"


@pytest.mark.parametrize("language", ["zh", "ja"])
def test_help_pages_name_every_input(schemas, language):
    for node, schema in schemas.items():
        page = (ROOT / "web" / "docs" / node / f"{language}.md").read_text(encoding="utf-8")
        assert all(f"`{socket.args[0]}`" in page for socket in schema.inputs), node
        whole = (ROOT / "web" / "docs" / f"{node}.md").read_text(encoding="utf-8")
        assert [*map(len, re.findall("^#+", page, re.MULTILINE))] == [*map(len, re.findall("^#+", whole, re.MULTILINE))]
