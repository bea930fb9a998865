"""Ten texts have one loudness, whichever node speaks them."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import pytest
import soundfile
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, Voice, read_clip
from higgs_tts.engine.audio.loudness import integrated_loudness
from higgs_tts.engine.voice.clip import BUILT_IN_CLIPS
from higgs_tts.tests.measured import noise_floor, true_peak

TEXTS = [
    "The lamp is lit.",
    "Nobody came.",
    "It rained.",
    "Open it, please!",
    "She went up.",
    "What was that?",
    "He laughed.",
    "Two coins.",
    "The river.",
    "Good night.",
]
FRESH = {"loudness": "-20 LUFS", "max_frames": 120, "retries": 0, "check": False, "seed": 3}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engine():
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as engine:
        yield engine


@pytest.fixture(scope="module")
def voices(engine) -> list[Voice]:
    clips = [read_clip(clip) for clip in sorted(BUILT_IN_CLIPS.glob("*.flac"))]
    made = [engine.encode_voice(wav[..., : 3 * rate], rate) for wav, rate in clips]
    return [replace(made[at % len(made)], name=str(at)) for at in range(len(TEXTS))]


@pytest.fixture(scope="module")
def book_codes(tmp_path_factory):
    """The folder of codes of a book that was spoken before: another loudness asks for no other ones."""
    return tmp_path_factory.mktemp("book") / "spoken"


@pytest.fixture(scope="module")
def patchers():
    """Patchers of earlier tests. One that is collected unloads the engine, which the next test may be using."""
    return []


@pytest.fixture
def spoken(load_module, engine, voices, patchers, book_codes, tmp_path):
    """spoken(node, **settings) -> the waves [n] of the ten texts."""
    patcher = load_module("comfy.sharing").share_patchers([engine], [["files"]], "embedded")
    patchers.append(patcher)

    def alone(module, node, text_of, **settings):
        execute = getattr(load_module(module), node).execute
        given = [{"voice": voice} if module == "speak" else {"voices": {"voice_1": voice}} for voice in voices]
        made = [execute(patcher, text_of(*one), **one_voice, **FRESH | settings)
                for one, one_voice in zip(enumerate(TEXTS), given, strict=True)]  # fmt: skip
        return [output.args[0]["waveform"][0] for output in made]

    def run(name, **settings):
        if name == "Speak":
            return alone("speak", "HiggsTTSSpeak", lambda at, text: text, **settings)
        if name == "Dialogue":
            return alone("dialogue", "HiggsTTSDialogue", lambda at, text: f"{at}: {text}\n{at}: Yes.", **settings)
        if name == "Subtitles":
            cue = "1\n00:00:01,000 --> 00:00:04,000\n"
            return alone("subtitles", "HiggsTTSSubtitles", lambda at, text: f"{cue}{text}\n", **settings)
        named = {f"voice_{at + 1}": voice for at, voice in enumerate(voices)}
        if name == "Lines":
            sheet = "id,speaker,text\n" + "".join(f'{at},{at},"{text}"\n' for at, text in enumerate(TEXTS))
            inputs = {"model": patcher, "voices": named, **FRESH, **settings}
            listed = {key: {k: [v] for k, v in value.items()} if key == "voices" else [value]
                      for key, value in inputs.items()}  # fmt: skip
            load_module("lines").HiggsTTSLines.execute(lines=[sheet], **listed)
            files = [tmp_path / "output" / "lines" / f"{at}.wav" for at in range(len(TEXTS))]
        else:
            text = "# Ten\n\n" + "\n\n".join(f"## {at}\n\n{text}" for at, text in enumerate(TEXTS))
            folder = tmp_path / "output" / "book"
            if book_codes.is_dir():
                shutil.copytree(book_codes, folder / "spoken")
            load_module("book").HiggsTTSBook.execute(patcher, text=text, format="wav", **FRESH | settings)
            shutil.copytree(folder / "spoken", book_codes, dirs_exist_ok=True)
            files = sorted(folder.glob("*.wav"))
        return [torch.from_numpy(soundfile.read(file, dtype="float32")[0])[None] for file in files]

    return run


@pytest.mark.parametrize("name", ["Speak", "Dialogue", "Lines", "Subtitles", "Book"])
def test_ten_texts_have_the_loudness_of_a_new_node(spoken, name):
    waves = spoken(name)
    levels = [integrated_loudness(wave) for wave in waves]
    assert len(levels) == len(TEXTS)
    assert max(levels) - min(levels) < 0.5 and all(abs(level + 20) < 0.25 for level in levels), levels
    assert all(true_peak(wave, 24000) < -0.9 for wave in waves)


def test_a_book_keeps_what_acx_asks_for(spoken):
    for wave in spoken("Book", loudness="ACX"):
        assert -23 < 10 * math.log10(float(wave.square().mean())) < -18
        assert true_peak(wave, 24000) < -3 and noise_floor(wave, 24000) < -60
