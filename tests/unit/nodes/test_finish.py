"""Loudness and files of nodes that speak."""

from __future__ import annotations

import contextlib
import json
import types
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import HiggsError, Voice
from higgs_tts.engine.audio.loudness import integrated_loudness

from .conftest import FakeEngine

ANNA = Voice(torch.zeros(5, 8, dtype=torch.int64), "One.", "Anna")
WAV = torch.linspace(-0.5, 0.5, 24000)[None], 24000


@pytest.fixture
def finish(load_module):
    return load_module("finish").Finish


def hidden(prompt=None, more=None):
    return types.SimpleNamespace(prompt=prompt, extra_pnginfo=more)


def tags_of(path):
    av = pytest.importorskip("av", reason="PyAV is not installed")
    with av.open(str(path)) as file:
        return {**file.metadata, **file.streams.audio[0].metadata}


def test_a_workflow_older_than_the_inputs_keeps_its_sound_and_saves_nothing(finish, tmp_path):
    settings = {"seed": 1}
    old = finish.take(settings)
    wav = torch.rand(1, 2400)
    assert old.complete(wav, 24000) is wav
    assert settings == {"seed": 1} and old.lines == [] and not list(tmp_path.rglob("*.flac"))


def test_the_level_is_reached_and_told(finish):
    settings = {"loudness": "-19 LUFS", "save_as": "off", "seed": 1}
    mine = finish.take(settings)
    time = torch.arange(48000) / 24000
    out = mine.complete(0.05 * torch.sin(2764 * time)[None], 24000)
    assert settings == {"seed": 1} and integrated_loudness(out) == pytest.approx(-19.0, abs=0.1)
    assert mine.lines == ["Loudness: -19.0 LUFS, true peak -14.5 dB."]


@pytest.mark.parametrize("kind", ["flac", "mp3", "ogg", "wav", "m4b"])
def test_files_are_numbered_and_hold_the_workflow_where_comfyui_reads_it(finish, tmp_path, kind):
    made = hidden({"1": {"class_type": "HiggsTTSSpeak"}}, {"workflow": {"nodes": []}})
    mine = finish(save_as=kind, filename_prefix="audio/%year%/a b", hidden=made)
    mine.spoken_by([ANNA, None, replace(ANNA, name=""), replace(ANNA, name="Tom"), ANNA])
    mine.complete(*WAV)
    mine.hidden, mine.artist = hidden(), ""
    mine.complete(*WAV)
    first, second = (tmp_path / "output" / "audio" / "2026" / f"a b_0000{n}_.{kind}" for n in (1, 2))
    assert mine.lines == [f"Saved: output/audio/2026/{path.name}." for path in (first, second)] and mine.path == second
    tags = {name.lower(): value for name, value in tags_of(first).items()}
    assert tags["title"] == "a b_00001" and tags["artist"] == "Anna, Tom"
    if kind in ("flac", "mp3", "ogg"):
        assert json.loads(tags["prompt"])["1"]["class_type"] == "HiggsTTSSpeak"
        assert json.loads(tags["workflow"]) == {"nodes": []}
    else:
        assert "prompt" not in tags
    assert not {"workflow", "artist"} & {name.lower() for name in tags_of(second)}


def test_a_user_may_keep_workflows_out_of_files(finish, comfy, tmp_path):
    comfy["comfy.cli_args"].args.disable_metadata = True
    finish(save_as="flac", hidden=hidden({"1": {}})).complete(*WAV)
    (path,) = tmp_path.rglob("*.flac")
    assert "prompt" not in {name.lower() for name in tags_of(path)}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"loudness": "loud"}, "loudness is 'loud'. Choose one of: as is, -16 LUFS"),
        ({"save_as": "exe"}, "save_as is 'exe'. Choose one of: off, flac"),
    ],
)
def test_an_unknown_choice_is_named(finish, settings, says):
    with pytest.raises(HiggsError, match=says.replace(".", r"\.")):
        finish.take(dict(settings))


@pytest.mark.parametrize(
    "prefix", ["../up", "", "  ", "/tmp/x", "C:\\x", "a/../../x", "a/what?", "audio/10:30", "aux/x", "//server/x", "a."]
)
def test_a_pattern_that_leads_out_or_is_no_name_on_every_system_is_refused_before_speech(finish, prefix):
    with pytest.raises(HiggsError, match="filename_prefix is"):
        finish.take({"save_as": "wav", "filename_prefix": prefix})
    finish.take({"save_as": "off", "filename_prefix": prefix})


def test_the_result_has_its_loudness_and_the_player_what_was_heard(comfy, load_module, monkeypatch):
    """Otherwise the volume would jump during playback."""
    speak, shown = load_module("speak"), []
    sound = types.SimpleNamespace(
        step=None, hear=lambda wav: None, begin_anew=lambda why: None, spell=lambda *chunk: None,
        finish=lambda wav, words, result: shown.extend([wav.clone(), result]), problems=lambda: (),
    )  # fmt: skip
    monkeypatch.setattr(speak.events, "heard", lambda *given: contextlib.nullcontext(sound))
    engine = FakeEngine()
    engine.words = lambda speech: ()
    finish = load_module("finish").Finish("-23 LUFS")
    speech, _ = speak.with_player(
        engine, lambda listener: engine.speak("Hi.", None, None, listener=listener), finish=finish
    )
    assert integrated_loudness(speech.wav) == pytest.approx(-23.0, abs=0.1) and len(finish.lines) == 1
    assert torch.equal(shown[0], torch.linspace(-0.5, 0.5, 1920))
    assert torch.equal(shown[1][0][0], speech.wav), "what a download gives"


def test_music_lies_under_speech_in_its_own_format(comfy, load_module, make_engine, tmp_path):
    patcher = load_module("comfy.patcher").make_patcher(make_engine())
    patcher.model.label, patcher.model.warnings = "higgs", ()
    music = {"waveform": torch.full((1, 2, 48000), 0.2), "sample_rate": 48000}
    run = load_module("speak").HiggsTTSSpeak.execute
    audio, info, *_ = run(patcher, "Hi", bed=music, lower_bed=20.0, save_as="wav").args
    wave = audio["waveform"][0]
    assert audio["sample_rate"] == 48000 and wave.shape == (2, round(48000 * (0.08 + 2.0)))
    dry = run(patcher, "Hi").args[0]
    assert dry["sample_rate"] == 24000 and torch.equal(dry["waveform"][0, 0], torch.linspace(-0.5, 0.5, 1920))
    assert float(wave[0, 1920]) == pytest.approx(0.02, abs=0.01), (
        "lowered in the middle of the speech, which is 0 there"
    )
    assert float(wave[0, 40_000]) == pytest.approx(0.2, abs=1e-3) and float(wave[0, -1]) < 1e-3
    assert "Saved: output/audio/higgs_00001_.wav." in info
    with pytest.raises(HiggsError, match="Higgs Speak: the bed input has the shape"):
        run(patcher, "Hi", bed={"waveform": torch.zeros(2, 1, 10), "sample_rate": 24000})
