"""Higgs Subtitles: sources of cues, their voices, and the outputs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Engine, EngineConfig, HiggsError, Voice, read_cues

VOICE, OTHER = Voice(torch.zeros(50, 8, dtype=torch.int64), "One."), Voice(torch.ones(60, 8, dtype=torch.int64), "Two.")
SRT = """1
00:00:01,000 --> 00:00:03,000
Anna: Hello to all of you who are here.

2
00:00:04,000 --> 00:00:06,500
<i>Tom: Who is there, in the middle of the night?</i>

3
00:00:07,000 --> 00:00:08,000
[door slams]

4
00:00:08,500 --> 00:00:10,000
Anna: It is only the cat.

5
00:00:11,000 --> 00:00:12,000
Tom: Good.
"""


def film(seconds=20, rate=48000):
    t = torch.arange(seconds * rate) / rate
    return {
        "waveform": 0.3 * (torch.sin(1000 * t) * (torch.sin(20 * t) > 0)).expand(1, 2, -1).clone(),
        "sample_rate": rate,
    }


@pytest.fixture
def run(load_module, make_engine):
    patcher = load_module("comfy.patcher").make_patcher(make_engine())
    patcher.model.label, patcher.model.warnings = "higgs", ("a model's warning",)
    node = load_module("subtitles").HiggsTTSSubtitles

    def run(srt=SRT, **given):
        """Return the spoken texts; `run.audio`, `run.info`, `run.srt`, `run.report` and `run.words` are the outputs."""
        run.audio, run.info, run.srt, run.report, run.words = node.execute(patcher, srt, **given).args
        calls = [call for call in patcher.engine.calls if isinstance(call, tuple) and len(call) == 5]
        run.turns, run.voices, run.params, run.scene, run.even = calls[-1]
        return [(turn.speaker, turn.text) for turn in run.turns]

    run.engine, run.node = patcher.engine, node
    return run


def test_what_is_wrong_with_a_connected_voice_is_in_info(run):
    run(voices={"voice_1": replace(VOICE, name="Anna", transcript=None), "voice_2": replace(OTHER, name="Tom")})
    assert run.info.count("Warning: Voice ") == 1
    assert "Warning: Voice Anna: Cloning works less well without a transcript." in run.info.splitlines()


def test_each_cue_is_spoken_at_its_time(run):
    assert run(seed=3, scene=" hall ", even_loudness=False) == [
        ("Anna", "Hello to all of you who are here."),
        ("Tom", "Who is there, in the middle of the night?"),
        ("Anna", "It is only the cat."),
        ("Tom", "Good."),
    ]
    assert (run.params.seed, run.scene, run.even) == (3, "hall", False)
    wave = run.audio["waveform"]
    assert wave.shape == (1, 1, 12 * 24000) and run.audio["sample_rate"] == 24000
    assert wave[0, 0, 24000] == 1 and wave[0, 0, 24000 - 1] == 0 == wave[0, 0, 24000 + 5]
    assert run.info.startswith("5 cues: 4 on time without changes, 1 without words. 12.0 s, spoken in 0.0 s.")
    for part in (
        "Warning: a model's warning",
        "Warning: Sound descriptions were not spoken",
        "Speakers: 1 Anna, 2 Tom",
        "Model: higgs",
    ):
        assert part in run.info
    told = run.report.splitlines()
    assert len(told) == 5 and told[0] == "1  00:00:01,000  Anna: 0.00 s of speech for 2.50 s: unchanged"
    cues = read_cues(run.srt).cues
    assert [cue.start for cue in cues] == [1, 4, 7, 8.5, 11] and "<i>Tom:" in run.srt and cues[2].stop == 8


def test_the_page_gets_the_whole_sound_at_the_end(run, comfy, load_module):
    server, events = comfy["server"].PromptServer.instance, load_module("page.events")
    server.client_id, server.last_node_id, server.sockets = "me", "7", {"me": object()}
    events.listen("me", True)
    run(seed=5)
    (one,) = events.runs_of("me")
    assert load_module("page.live_sound").settle(60) and one.sound.state == "complete"
    assert one.about()["seed"] == 5 and one.about()["said"].startswith("Anna: Hello to all of you")
    wave = run.audio["waveform"][0, 0]
    assert one.sound.read(one.sound.revision, 0, len(wave)) == (wave * 32767).round().to(torch.int16).numpy().tobytes()
    run(film=film(), bed=film())
    loud = events.runs_of("me")[1].sound
    assert load_module("page.live_sound").settle(60)
    size = loud.file[0].stat().st_size
    assert loud.size - size == 2 * 24_000 * 20, "one channel, at the page's rate"
    assert size == 44 + 2 * 2 * 48_000 * 20, "and the result as it is"


def test_voices_are_matched_as_in_a_dialogue(run, library, tmp_path):
    run(voices={"voice_1": VOICE, "voice_2": OTHER})
    assert run.voices == {"Anna": VOICE, "Tom": OTHER}
    VOICE.save(library / "cleo.safetensors")
    run("Anna = cleo\nTom = 1\n\n" + SRT, voices={"voice_1": OTHER})
    assert run.voices["Anna"].transcript == "One." and run.voices["Tom"] is OTHER
    before = run.node.fingerprint_inputs("Anna = cleo\n\n" + SRT)
    OTHER.save(library / "cleo.safetensors")
    assert run.node.fingerprint_inputs("Anna = cleo\n\n" + SRT) != before
    before = run.node.fingerprint_inputs("Anna = input/cleo.wav\nTom = 1\n\n" + SRT)
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "cleo.wav").write_bytes(b"a clip")
    assert run.node.fingerprint_inputs("Anna = input/cleo.wav\nTom = 1\n\n" + SRT) != before
    with pytest.raises(HiggsError, match=r"^Higgs Subtitles: Tom has no voice. Names with a voice: .*Anna"):
        run(voices={"voice_1": replace(VOICE, name="Anna")})


def test_a_new_node_speaks_with_both_voices(run, load_module):
    pytest.importorskip("av", reason="PyAV comes with ComfyUI and is not in requirements.txt")
    default = load_module("subtitles").SRT
    run(default, voices={"voice_1": VOICE, "voice_2": OTHER})
    assert run.voices == {"Anna": VOICE, "Tom": OTHER}
    assert run.info.count("Warning") == 1, run.info  # the model's
    run(default, voices={"voice_1": VOICE, "voice_2": OTHER, "voice_3": replace(OTHER, name="ruth")})
    assert "Warning: No speaker uses the connected voice 3 (ruth)." in run.info


def test_a_faulty_cue_is_left_out_and_reported(run):
    said = run(SRT.replace("00:00:08,500 -->", "00:00:08,500 ->"))
    assert [speaker for speaker, _ in said] == ["Anna", "Tom", "Tom"] and "the cat" not in str(said)
    assert 'Warning: Cue 4 (line 14) was left out: "00:00:08,500 -> 00:00:10,000" is not a valid pair' in run.info


def test_speakers_without_a_voice_get_one_from_the_film(run):
    run(film=film())
    encoded = [call for call in run.engine.calls if isinstance(call, tuple) and len(call) == 4]
    assert [(rate, said) for _, rate, said, _ in encoded] == [
        (24000, "Hello to all of you who are here. It is only the cat."),
        (24000, "Who is there, in the middle of the night?"),
    ]
    assert {name: voice.name for name, voice in run.voices.items()} == {"Anna": "Anna", "Tom": "Tom"}
    assert "Voice of Anna: " in run.info and " s from the film, cue 1, 4." in run.info
    assert run.audio["waveform"].shape == (1, 1, 20 * 24000), "as long as the film"
    run.engine.calls.clear()
    run(film=film(), voices={"voice_1": replace(VOICE, name="Anna")}, translated=True)
    ((_, _, said, name),) = [call for call in run.engine.calls if isinstance(call, tuple) and len(call) == 4]
    assert (said, name) == (None, "Tom") and run.voices["Anna"].transcript == "One."
    run(film=film(seconds=6))
    assert "Warning: Tom cannot be heard" not in run.info and len(run.voices) == 2
    run(film={"waveform": torch.zeros(1, 1, 48000), "sample_rate": 48000})
    assert "Warning: the film has no clear second of Tom" in run.info and run.voices == {}


@pytest.mark.parametrize(
    ("channels", "left"), [(6, [1.0, 0.0, 0.7, 0.0, 0.7, 0.0]), (8, [1, 0, 0.7, 0, 0.7, 0, 0.7, 0])]
)
def test_a_bed_of_many_channels_becomes_stereo(run, channels, left):
    """ComfyUI's nodes save everything but mono as stereo. In the order of WAV files the fourth channel is the bass."""
    bed = torch.zeros(1, channels, 14 * 24000)
    for channel in range(channels):
        bed[0, channel, 13 * 24000 + channel] = 0.5  # one after the other, behind the last cue
    run(bed={"waveform": bed, "sample_rate": 24000})
    heard = run.audio["waveform"][0, :, 13 * 24000 :][:, :channels] / 0.5
    assert heard.shape == (2, channels) and torch.allclose(heard[0], torch.tensor(left) / sum(left), atol=0.01)
    assert torch.equal(heard[1], heard[0][[1, 0, 2, 3, *(at ^ 1 for at in range(4, channels))]])
    run(bed={"waveform": bed[:, :5], "sample_rate": 24000})
    assert run.audio["waveform"].shape[1] == 1


def test_the_bed_gives_rate_and_channels_and_is_lowered(run):
    bed = film(seconds=15, rate=44100)
    run(bed=bed, lower_bed=60.0)
    wave = run.audio["waveform"]
    assert wave.shape == (1, 2, 15 * 44100) and run.audio["sample_rate"] == 44100
    assert torch.equal(wave[..., 13 * 44100 :], bed["waveform"][..., 13 * 44100 :])
    assert float(wave[0, 1, round(1.0005 * 44100)]) != float(bed["waveform"][0, 1, round(1.0005 * 44100)])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"srt": "Hello."}, "there are no cues"),
        (
            {"srt": "1\n00:00:01,000 --> 00:00:00,000\nHi."},
            r"no usable cue is left.*Cue 1 \(line 2\) was left out: .* ends before it starts",
        ),
        ({"srt": "1\n00:00:01,000 --> 00:00:02,000\n[door]"}, "no cue contains anything to speak"),
        ({"srt": "missing.srt"}, r"there is no file 'missing\.srt' in ComfyUI's input folder"),
        ({"srt": "x\0.srt"}, r"there is no file 'x\\x00\.srt'"),
        *(
            ({"srt": name}, r"outside the folders a workflow may read.*higgs_tts[\\/]folders\.txt")
            for name in ("/etc/film.srt", "../secret.srt", "a/../../secret.srt", "/etc/../proc/film.srt")
        ),
        ({"film": None}, "the film input is empty"),
        ({"bed": {"waveform": torch.zeros(2, 1, 5), "sample_rate": 5}}, "the bed input has the shape"),
        (
            {"bed": {"waveform": torch.zeros(1, 1, 5), "sample_rate": 47999}},
            "The bed has the unusual sample rate",
        ),
        ({"film": {"waveform": torch.zeros(2, 5), "sample_rate": 5}}, "the film input has the shape"),
        ({"stretch": 9.0}, "stretch is 9.0"),
    ],
)
def test_bad_input_is_an_error_on_the_node(run, given, told):
    with pytest.raises(HiggsError, match=f"^Higgs Subtitles: .*{told}"):
        run(**given)


def test_comfyui_s_own_folders_may_be_read(run, tmp_path, load_module):
    folder = tmp_path / "input"
    folder.mkdir()
    (folder / "film.srt").write_bytes(SRT.encode("utf-16"))
    (tmp_path / "output").mkdir()
    other = tmp_path / "output" / "other.VTT"
    other.write_text("WEBVTT\n\n00:01.000 --> 00:02.000\n<v Bob>Grüße.\n", encoding="utf-8")
    assert run(" film.srt\n")[3] == ("Tom", "Good.")
    assert run(f'"{other}"') == [("Bob", "Grüße.")]
    before = run.node.fingerprint_inputs("film.srt")
    (folder / "film.srt").write_text(SRT + "\n", encoding="utf-8")
    assert run.node.fingerprint_inputs("film.srt") != before
    assert run.node.fingerprint_inputs(None) == ["", False]


def test_a_guessed_encoding_is_on_the_node_before_speech_and_in_info(run, tmp_path, comfy):
    comfy["server"].PromptServer.instance.client_id, comfy["server"].PromptServer.instance.last_node_id = "me", "7"
    (tmp_path / "input").mkdir()
    srt = "1\n00:00:01,000 --> 00:00:02,000\nСтарый мост закрыли.\n"
    (tmp_path / "input" / "film.srt").write_bytes(srt.encode("cp1251"))
    assert run("film.srt") == [("", "Старый мост закрыли.")]
    told = "film.srt is not UTF-8 and was read as Windows-1251 (Cyrillic): 'Старый мост закрыли.'."
    assert comfy["server"].told[0][0].startswith(told) and f"Warning: {told}" in run.info


def test_other_folders_may_be_read_only_once_listed(run, tmp_path):
    films = tmp_path / "films"
    films.mkdir()
    (films / "film.srt").write_text(SRT, encoding="utf-8")
    with pytest.raises(HiggsError, match=r"add the line .*films to .*folders\.txt"):
        run(str(films / "film.srt"))
    (tmp_path / "user" / "higgs_tts").mkdir(parents=True)
    (tmp_path / "user" / "higgs_tts" / "folders.txt").write_text(f"# mine\n\n {films}/ \n", encoding="utf-8")
    assert run(str(films / "film.srt"))[3] == ("Tom", "Good.")
    (tmp_path / "films 2").mkdir()
    with pytest.raises(HiggsError, match="outside the folders"):
        run(str(tmp_path / "films 2" / "film.srt"))


def test_a_pipe_is_refused_as_a_file(run, tmp_path, make_pipe):
    (tmp_path / "input").mkdir()
    make_pipe(tmp_path / "input" / "film.srt")
    with pytest.raises(HiggsError, match="there is no file"):
        run("film.srt")


def test_pronunciations_are_spoken_and_not_shown(run):
    said = run(pronunciations="Tom = Tomm\nnight = nite")
    assert said[1] == ("Tom", "Who is there, in the middle of the nite?") and "night?" in run.srt


def test_the_embedded_engine_dubs_its_own_film(load_module):
    pytest.importorskip("av")
    engine = Engine(EngineConfig(str(EMBEDDED), device="cpu"))
    patcher = load_module("comfy.sharing").share_patchers([engine], [["files"]], "embedded")
    node = load_module("subtitles").HiggsTTSSubtitles
    srt = SRT.replace(" of you who are here.", " of you.").replace(", in the middle of the night?", " at night?")
    srt = srt.replace("[door slams]", "Anna: Please!").replace("Good.", "Then go to bed.")
    made, info, *_ = node.execute(patcher, "Anna = amber\nTom = oliver\n\n" + srt).args
    assert "5 cues: " in info and "Voice of" not in info
    dub, info, times, report, _ = node.execute(patcher, srt, film=made, bed=made, stretch=1.5, run_on=0.0).args
    assert dub["waveform"].shape == made["waveform"].shape and dub["sample_rate"] == 24000
    assert "Voice of Anna: " in info and "Voice of Tom: " in info and "Backend: torch" in info
    assert len(report.splitlines()) == 5 == len(read_cues(times).cues)
