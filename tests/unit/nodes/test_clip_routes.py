"""Recordings on the page: outline, checks, playback, and saving as a voice."""

from __future__ import annotations

import io

import pytest
import torch
from higgs_tts.engine import BUILT_IN_CLIPS, ClipParams, HiggsError, clip_checks, read_clip, reference_of

soundfile = pytest.importorskip("soundfile")


@pytest.fixture
def ask(server_routes):
    return server_routes


@pytest.fixture
def inputs(tmp_path):
    """ComfyUI's input folder: a clip, a stereo file of another rate with a silent second half, a long one, no sound."""
    folder = tmp_path / "input"
    (folder / "sub").mkdir(parents=True)
    (folder / "me.flac").write_bytes((BUILT_IN_CLIPS / "oliver.flac").read_bytes())
    loud = torch.zeros(2 * 44100, 2)
    loud[:44100, 1] = 0.5
    soundfile.write(folder / "sub" / "half.wav", loud.numpy(), 44100)
    soundfile.write(folder / "long.wav", torch.zeros(8000 * 601).numpy(), 8000)
    soundfile.write(folder / "none.wav", torch.zeros(0).numpy(), 8000)
    (folder / "noise.wav").write_text("no sound", encoding="utf-8")
    (tmp_path / "secret.wav").write_bytes((BUILT_IN_CLIPS / "amber.flac").read_bytes())
    return folder


def test_the_outline_has_the_peaks_of_all_channels(ask, inputs):
    told = ask("clip", name="sub/half.wav").data
    peaks = bytes.fromhex(told["outline"])
    assert told["seconds"] == 2 and len(peaks) == 600
    assert set(peaks[:299]) == {127} and set(peaks[301:]) == {0}
    assert ask("clip", name="none.wav").data == {"seconds": 0, "outline": "00"}
    assert ask("clip", name="sub\\half.wav").data == told, "as saved on Windows"


def test_the_checks_are_the_engine_s_for_the_part(ask, inputs):
    given = {"clip": "me.flac", "start": 1.0, "length": 2.5, "transcript": "Far too many words. " * 9}
    told = ask("clip/checks", given).data
    wav, rate = read_clip(BUILT_IN_CLIPS / "oliver.flac")
    part = clip_checks(wav[:, rate : rate + round(2.5 * rate)], rate)
    assert told["checks"] == [check._asdict() for check in part] and told["seconds"] == 2.5
    assert told["misfit"].startswith("The transcript is too long for 2.5 s of speech")
    assert ask("clip/checks", {"clip": "me.flac"}).data["misfit"] == ""
    (check,) = ask("clip/checks", {"clip": "me.flac", "length": 0.5}).data["checks"]
    assert check["verdict"] == "poor" and "0.50 s long" in check["advice"]


def test_a_part_is_played(ask, inputs):
    answer = ask("clip/sound", name="sub/half.wav", start="0.5", length="1")
    heard, rate = soundfile.read(io.BytesIO(answer.data))
    assert rate == 24_000 and len(heard) == 24_000
    assert abs(heard[1000:11_000] - 0.25).max() < 0.01 and abs(heard[13_000:]).max() < 0.01


def test_a_part_is_saved_as_a_voice_that_is_listed(ask, inputs, tmp_path):
    given = {"clip": "me.flac", "start": 0.5, "length": 3.0, "transcript": " Hello there. ", "name": "team/v1.5"}
    assert ask("clip/save", given).data == {"name": "v1.5.wav"}
    root = tmp_path / "models" / "voices" / "team"
    wav, rate = read_clip(BUILT_IN_CLIPS / "oliver.flac")
    saved, _ = soundfile.read(root / "v1.5.wav", dtype="float32")
    heard, _ = reference_of(wav[:, rate // 2 : rate // 2 + 3 * rate], rate)
    assert abs(torch.from_numpy(saved) - heard).max() < 1e-4
    assert (root / "v1.5.txt").read_text(encoding="utf-8") == "Hello there."
    voice = next(one for one in ask("voices", model="").data if one["name"] == "team/v1.5.wav")
    assert (voice["seconds"], voice["transcript"], voice["problem"]) == (3.0, "Hello there.", "")


def test_saving_never_overwrites_and_saves_the_same_voice_once(ask, inputs, tmp_path):
    def save(**changes):
        return ask("clip/save", {"clip": "me.flac", "transcript": "One.", "name": "me", **changes}).data["name"]

    root = tmp_path / "models" / "voices"
    root.mkdir(parents=True)
    (root / "me.safetensors").write_bytes(b"another voice")
    assert [save(), save(), save(transcript="Two."), save(transcript=""), save(transcript="")] == [
        "me 2.wav", "me 2.wav", "me 3.wav", "me 4.wav", "me 4.wav",
    ]  # fmt: skip
    assert sorted(path.name for path in root.iterdir()) == [
        "me 2.txt", "me 2.wav", "me 3.txt", "me 3.wav", "me 4.wav", "me.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("file", ["me.flac", "me.MP3", "me.mp4", "me.txt", "me.reference.txt", "Me.safetensors"])
def test_a_name_is_free_if_no_other_voice_or_text_has_it(ask, inputs, tmp_path, file):
    root = tmp_path / "models" / "voices"
    root.mkdir(parents=True)
    (root / file).write_bytes(b"another voice")
    given = {"clip": "me.flac", "transcript": "One.", "name": "me"}
    assert [ask("clip/save", given).data["name"] for _ in range(2)] == ["me 2.wav"] * 2
    assert sorted(path.name for path in root.iterdir()) == sorted([file, "me 2.txt", "me 2.wav"])


@pytest.mark.parametrize("name", ["", "gone.wav", "../secret.wav", "/etc/passwd", "C:\\x.wav", "\0"])
def test_only_recordings_in_the_input_folder_are_read(ask, inputs, name):
    for answer in (ask("clip", name=name), ask("clip/sound", name=name), ask("clip/checks", {"clip": name})):
        assert answer.status == 400 and answer.data["error"].startswith("there is no recording")
    assert ask("clip/save", {"clip": name, "name": "x"}).status == 400


@pytest.mark.parametrize("name, told", [("long.wav", "is 601.0 s long; more than 600 s"), ("noise.wav", "as audio")])
def test_what_cannot_be_read_is_told_in_a_sentence(ask, inputs, name, told):
    for answer in (ask("clip", name=name), ask("clip/sound", name=name), ask("clip/checks", {"clip": name})):
        assert answer.status == 400 and told in answer.data["error"] and "\n" not in answer.data["error"]


@pytest.mark.parametrize(
    "given, told",
    [
        ({"clip": 3}, "clip must be a string"),
        ({"transcript": []}, "transcript must be a string"),
        ({"start": "0"}, "must be numbers"),
        ({"start": True}, "must be numbers"),
        ({"length": float("nan")}, "must be numbers"),
        ({"length": -1}, "length is -1"),
        ({"length": 31}, "length is 31"),
        ({"start": 99}, "start is 99 s, but the clip is 6.7 s long"),
        ({"name": 4}, "name must be a string"),
        ({"name": "../me"}, "not a valid voice name"),
        ({"name": ""}, "not a valid voice name"),
        ({"length": 0.5}, "too short"),
    ],
)
def test_values_that_make_no_voice_are_refused(ask, inputs, tmp_path, given, told):
    answer = ask("clip/save", {"clip": "me.flac", "name": "me", **given})
    assert answer.status == 400 and told in answer.data["error"]
    assert not (tmp_path / "models" / "voices").exists()
    if not {"name", "transcript"} & given.keys():
        asked = {key: str(value) for key, value in given.items() if key != "clip"}
        assert ask("clip/sound", name="me.flac", **asked).status in (200, 400)


def test_the_node_takes_the_recording_in_place_of_audio(load_module, make_engine, inputs):
    patcher = load_module("comfy.patcher").make_patcher(make_engine())
    node = load_module("voice").HiggsTTSVoice
    node.execute(patcher, None, "Hi.", start=1.0, length=2.0, clip="me.flac")
    assert patcher.engine.calls[-1] == ((1, 48000), 24000, "Hi.", "")
    audio = {"waveform": torch.zeros(1, 1, 800), "sample_rate": 800}
    node.execute(patcher, audio, "Hi.", clip="me.flac")
    assert patcher.engine.calls[-1][1] == 24000
    node.execute(patcher, audio, "Hi.")
    assert patcher.engine.calls[-1][1] == 800
    with pytest.raises(HiggsError, match=r"^Higgs Voice: there is no recording 'gone\.wav'"):
        node.execute(patcher, audio, "Hi.", clip="gone.wav")


def test_a_missing_clip_is_refused_before_the_run(load_module, inputs):
    node = load_module("voice").HiggsTTSVoice
    for given in ({}, {"clip": "the audio input"}, {"more_clips": None}):
        with pytest.raises(HiggsError, match=r"^Higgs Voice: there is no clip\. Choose or record one"):
            node.validate_inputs(**given)
    with pytest.raises(HiggsError, match=r"there is no recording 'gone\.wav'"):
        node.validate_inputs("gone.wav", None)
    assert all(node.validate_inputs(**given) for given in ({"audio": None}, {"clip": "me.flac"}, {"clip": None}))


def test_the_node_runs_again_if_its_recording_has_changed(load_module, inputs):
    node = load_module("voice").HiggsTTSVoice
    before = node.fingerprint_inputs(clip="me.flac", transcript="Hi.")
    assert before == node.fingerprint_inputs(clip="me.flac", transcript="Hi.") and before
    (inputs / "me.flac").write_bytes((BUILT_IN_CLIPS / "amber.flac").read_bytes())
    assert before != node.fingerprint_inputs(clip="me.flac", transcript="Hi.")
    assert node.fingerprint_inputs() == node.fingerprint_inputs(clip=None) == []


def test_a_part_has_the_range_of_the_node_s_inputs():
    with pytest.raises(HiggsError):
        ClipParams(float("nan"), 0.0)
