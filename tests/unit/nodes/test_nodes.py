"""Node schemas, and what nodes pass to the engine and to ComfyUI."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import pathlib
import sys
import types
from dataclasses import replace

import pytest
import torch
from higgs_tts.engine import (
    BUILT_IN_CLIPS,
    CLIP_SUFFIXES,
    DOWNLOADS,
    VERSION,
    CueParams,
    EngineConfig,
    HiggsError,
    LipSyncParams,
    SamplingParams,
    ServerConfig,
    SpeechResult,
    Voice,
    range_of,
    read_clip,
)

ROOT = pathlib.Path(__file__).resolve().parents[3]
VOICE, OTHER = Voice(torch.zeros(50, 8, dtype=torch.int64), "One."), Voice(torch.ones(60, 8, dtype=torch.int64), "Two.")


def node_list():
    return asyncio.run(importlib.import_module("higgs_tts.nodes").make_extension().get_node_list())


def test_an_old_comfyui_gets_one_error_and_no_nodes(comfy, caplog):
    del comfy["comfy_api.latest"].io.NodeReplace
    assert node_list() == []
    (record,) = caplog.records
    assert "ComfyUI 0.14" in record.message
    assert "higgs_tts.nodes.load" not in sys.modules


def test_node_ids_stay_those_of_shared_workflows(schemas):
    assert list(schemas) == [
        "HiggsTTSLoadModel", "HiggsTTSLoadLoRA", "HiggsTTSVoice", "HiggsTTSSaveVoice", "HiggsTTSLoadVoice",
        "HiggsTTSSpeak", "HiggsTTSDialogue", "HiggsTTSLines", "HiggsTTSSubtitles", "HiggsTTSBook",
        "HiggsTTSLipSync", "HiggsTTSTranscribe", "HiggsTTSTrainVoice", "HiggsTTSServer",
    ]  # fmt: skip
    ends = {node for node, schema in schemas.items() if getattr(schema, "is_output_node", False)}
    ending = ("Speak", "Dialogue", "Lines", "Subtitles", "Book", "SaveVoice", "TrainVoice")
    assert ends == {f"HiggsTTS{name}" for name in ending}
    for schema in schemas.values():
        assert schema.category == "audio/tts/Higgs" and schema.search_aliases and schema.description
        assert all(socket.tooltip for socket in [*schema.inputs, *schema.outputs])
        page = (ROOT / "web" / "docs" / f"{schema.node_id}.md").read_text(encoding="utf-8")
        assert all(f"`{socket.args[0]}`" in page for socket in schema.inputs), schema.node_id


@pytest.mark.parametrize(
    "node, widget, suffixes, prefix",
    [
        ("HiggsTTSLoadVoice", "voice", set(CLIP_SUFFIXES), "input/"),
        ("HiggsTTSBook", "book", {".txt", ".md", ".markdown", ".epub"}, ""),
        ("HiggsTTSSubtitles", "srt", {".srt", ".vtt"}, ""),
    ],
)
def test_file_choices_allow_uploads(schemas, node, widget, suffixes, prefix):
    """web/js/upload.js makes the button."""
    asked = {socket.args[0]: socket.extra_dict for socket in schemas[node].inputs if hasattr(socket, "extra_dict")}
    assert {*asked} == {widget}
    told = asked[widget]["higgs_tts_upload"]
    assert {*told["accept"].split(",")} == suffixes and told["prefix"] == prefix


def test_info_of_a_voice_holds_the_warnings_about_its_clip(load_module):
    voice = Voice(torch.zeros(125, 8, dtype=torch.int64), "Good morning to all of you.", warnings=("Too loud.",))
    assert load_module("voice").describe(voice, "") == "5.0 s, 'Good morning to all of you.'\nWarning: Too loud."


def test_widgets_use_the_engine_s_defaults_and_ranges(schemas):
    settings = {
        "HiggsTTSSpeak": SamplingParams,
        "HiggsTTSDialogue": SamplingParams,
        "HiggsTTSLines": SamplingParams,
        "HiggsTTSSubtitles": SamplingParams,
        "HiggsTTSBook": SamplingParams,
        "HiggsTTSLoadModel": EngineConfig,
        "HiggsTTSServer": ServerConfig,
        "HiggsTTSLipSync": LipSyncParams,
    }
    seen = set()
    for node_id, cls in [*settings.items(), ("HiggsTTSSubtitles", CueParams)]:
        for socket in schemas[node_id].inputs:
            name = socket.args[0]
            if name == "model" or not hasattr(cls, name):
                continue
            default = 0.6 if name == "paragraph_gap" else getattr(cls, name)  # a new node's; without it 0, as saved
            assert socket.optional and socket.default == default, name
            if hasattr(socket, "options"):
                assert socket.default in socket.options
            elif socket.kind == "Boolean":
                assert isinstance(default, bool)
            elif socket.kind == "String":
                assert isinstance(default, str)
            else:
                assert (socket.min, socket.max, socket.step) == range_of(cls, name), name
            seen.add(name)
    numbers = {
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "max_frames",
        "chunk_seconds",
        "paragraph_gap",
        "turn_gap",
        "retries",
        "context",
        "memory",
    }
    cues = {"faster", "stretch", "shift", "run_on", "lower_bed"}
    server = {"voice", "key_variable", "calls", "timeout"}
    assert seen == numbers | cues | server | {"device", "dtype", "fps", "check"}


def test_the_checkpoint_choice_names_the_licence(load_module):
    tip = load_module("load").HiggsTTSLoadModel.define_schema().inputs[0].tooltip
    assert "research and non-commercial" in tip and "creators" in tip


def test_linked_names_are_not_validated_before_the_run(comfy):
    load, _, _, save, read, *_ = node_list()
    assert load.validate_inputs(None) is True and read.validate_inputs(None) is True
    for node, name in ((load, "model"), (save, "name"), (read, "voice")):
        assert node.fingerprint_inputs(**{name: None}) == node.fingerprint_inputs(**{name: None})


def test_an_input_error_is_reported_once(comfy):
    """ComfyUI repeats a sentence of `validate_inputs` for each input that it names, but for growing sockets.

    Lines, Book and Train Voice name several, and raise their errors.
    """
    for node in node_list():
        if check := vars(node).get("validate_inputs"):
            names = inspect.getfullargspec(check.__func__).args
            is_raised = node.__name__ in ("HiggsTTSVoice", "HiggsTTSLines", "HiggsTTSBook", "HiggsTTSTrainVoice")
            assert (len({*names} - {"cls", "voices"}) == 1) != is_raised, node


@pytest.mark.parametrize(
    ("module", "node", "good", "bad", "told"),
    [
        ("speak", "HiggsTTSSpeak", "Hello.", " \n", "Higgs Speak: the text is empty."),
        ("dialogue", "HiggsTTSDialogue", "Anna: Hello.", "# a comment", "Higgs Dialogue: the script is empty."),
        ("dialogue", "HiggsTTSDialogue", "Hello.", "", "Higgs Dialogue: the script is empty."),
        (  # Tom's voice may be connected
            "dialogue",
            "HiggsTTSDialogue",
            "Anna = a.wav\n\nAnna: Hi.\nTom: Yes.\nAnna: Well.\nTom: No.",
            "Anna = a.wav",
            "Higgs Dialogue: the script is empty.",
        ),
        (
            "subtitles",
            "HiggsTTSSubtitles",
            "00:00:01,000 --> 00:00:02,000\nHi.",
            "Hi.",
            "Higgs Subtitles: there are no cues",
        ),
        (
            "subtitles",
            "HiggsTTSSubtitles",
            "00:00:01,000 --> 00:00:02,000\nHi.",
            "no.srt",
            "Higgs Subtitles: there is no file",
        ),
    ],
)
def test_what_cannot_be_spoken_is_refused_before_the_run(load_module, module, node, good, bad, told):
    check = getattr(load_module(module), node).validate_inputs
    assert check(good) is check(None) is True and check(bad).startswith(told)


class TestSpeak:
    def test_pronunciations_are_applied(self, load_module, make_engine, library):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        patcher.model.label, patcher.model.warnings = "higgs", ()
        speak = load_module("speak").HiggsTTSSpeak
        speak.execute(patcher, "Nguyen of York.", pronunciations="Nguyen = Win")
        before = speak.fingerprint_inputs(text="York")
        (library / "pronunciations.txt").write_text("York = Yorrk", encoding="utf-8")
        speak.execute(patcher, "Nguyen of York.", pronunciations="Nguyen = Win")
        said = [call[0] for call in patcher.engine.calls if isinstance(call, tuple)]
        assert said == ["Win of York.", "Win of Yorrk."] and speak.fingerprint_inputs(text="York") != before

    def test_a_script_gets_a_hint(self, load_module, make_engine):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        patcher.model.label, patcher.model.warnings = "higgs", ()
        speak = load_module("speak").HiggsTTSSpeak
        for text, told in (("Anna: Hi.\nTom: Ho.\nAnna: Bye.", True), ("Anna: Hi.\nThat was all.", False)):
            _, info, *_ = speak.execute(patcher, text).args
            assert ("Names such as Anna" in info and "Higgs Dialogue" in info) == told

    @pytest.fixture
    def patcher(self, load_module, make_engine):
        made = load_module("comfy.patcher").make_patcher(make_engine())
        made.model.label, made.model.warnings = "higgs", ("a warning of the loader",)
        return made

    def test_cut_speech_is_reported_as_incomplete(self, load_module):
        speech = SpeechResult(torch.zeros(960), torch.zeros(1, 8, dtype=torch.int64), 0.0, 3, "frame limit (1 frames)")
        info = load_module("speak").describe(speech, "higgs").splitlines()
        assert speech.stopped in info[0] and "Complete" not in info[0]
        assert "1 frames" in info[-1] and "3 chunks" in info[-1] and "Memory" not in info[-1]
        peak = load_module("speak").describe(replace(speech, peak_bytes=9_960_000_000), "higgs").splitlines()[-1]
        assert "Peak memory: 10.0 GB." in peak

    @pytest.mark.parametrize(
        ("voice", "warning"),
        [
            (VOICE, ""),
            (replace(VOICE, transcript=None), "Voice (no name): Cloning works less well without a transcript."),
            (replace(VOICE, transcript=None, name="bob"), "Voice bob: Cloning works less well without a transcript."),
            (
                replace(VOICE, transcript="One. " * 40),
                "Voice (no name): The transcript is too long for 2.0 s of speech",
            ),
            (Voice(torch.zeros(700, 8).long(), "One."), "Voice (no name): The transcript is too short for 28.0 s"),
        ],
    )
    def test_what_is_wrong_with_a_voice_is_told_where_it_speaks(self, load_module, comfy, patcher, voice, warning):
        _, info, *_ = load_module("speak").HiggsTTSSpeak.execute(patcher, "Hi", voice=voice).args
        told = [line for line in info.splitlines() if "ranscript" in line]
        assert [line.startswith(f"Warning: {warning}") for line in told] == [True] * bool(warning)

    def test_speech_uses_given_settings_and_defaults_for_the_rest(self, load_module, comfy, patcher):
        audio, info, srt, words, said = (
            load_module("speak").HiggsTTSSpeak.execute(patcher, "Hi", voice=VOICE, scene=" a room ", seed=5).args
        )
        assert patcher.engine.calls == ["open", ("Hi", VOICE, SamplingParams(seed=5), "a room")]
        assert audio["waveform"].shape == (1, 1, 1920) and audio["sample_rate"] == 24000
        assert srt == "1\n00:00:00,000 --> 00:00:00,080\nHi\n" and words == ""
        assert said == "Hi, in words"
        assert info.splitlines() == [
            "0.1 s of speech in 0.0 s, 4.0 times real time. Spoken to the end, not checked.",
            "Warning: a warning of the loader",
            "Warning: a warning",
            "Model: higgs",
            f"Details: 2 frames, 100 frames/s. Backend: by hand. Higgs TTS {VERSION}",
        ]
        assert comfy["comfy.utils"].bars == [(1, 2), (2, 2)]
        assert len(comfy["comfy.model_management"].loads) == 1

    def test_sentences_are_taken_again_by_their_numbers(self, load_module, patcher):
        speak = load_module("speak").HiggsTTSSpeak
        for text, want in (("", {}), (" 3:1,7 : 2 ", {2: 1, 6: 2}), ("3:1, 3:4, 2:0", {2: 4})):
            speak.execute(patcher, "Hi", retakes=text)
            assert patcher.engine.retakes == want

    @pytest.mark.parametrize("wrong", ["0:1", "3", "3:", "3:1;4:1", "3:-1", "3:1,", "three:1", "³:1"])
    def test_wrong_retakes_are_refused_before_anything_is_loaded(self, load_module, patcher, wrong):
        with pytest.raises(HiggsError, match=r"^Higgs Speak: .*retakes has .*such as 3:1, 7:2"):
            load_module("speak").HiggsTTSSpeak.execute(patcher, "Hi", retakes=wrong)
        assert patcher.engine.calls == []

    @pytest.mark.parametrize("text", ["", " \n\t"])
    def test_empty_text_loads_nothing(self, load_module, patcher, text):
        with pytest.raises(HiggsError, match=r"^Higgs Speak: .*empty"):
            load_module("speak").HiggsTTSSpeak.execute(patcher, text)
        assert patcher.engine.calls == []

    def test_a_bad_setting_is_refused_before_anything_is_loaded(self, load_module, patcher):
        with pytest.raises(HiggsError, match=r"^Higgs Speak: .*temperature"):
            load_module("speak").HiggsTTSSpeak.execute(patcher, "Hi", temperature=-1.0)
        assert patcher.engine.calls == []

    def test_every_frame_checks_for_stop(self, load_module, comfy, patcher, interrupted):
        mm = comfy["comfy.model_management"]
        speak = patcher.engine.speak

        def stopped_in_the_middle(*args, **given):
            mm.stop = True
            return speak(*args, **given)

        patcher.engine.speak = stopped_in_the_middle
        with pytest.raises(interrupted):
            load_module("speak").HiggsTTSSpeak.execute(patcher, "Hi")
        assert comfy["comfy.utils"].bars == [] and patcher.engine.opened


def built_in(name):
    wav, rate = read_clip(BUILT_IN_CLIPS / f"{name}.flac")
    return {"waveform": torch.from_numpy(wav)[None], "sample_rate": rate}


def built_in_words(name):
    return (BUILT_IN_CLIPS / f"{name}.txt").read_text(encoding="utf-8").strip()


class TestVoice:
    def test_a_clip_is_passed_unchanged_with_its_transcript(self, load_module, make_engine):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        audio = {"waveform": torch.zeros(1, 2, 800), "sample_rate": 44100}
        voice, info = load_module("voice").HiggsTTSVoice.execute(patcher, audio, " Hello. ").args
        assert patcher.engine.calls == [((2, 800), 44100, "Hello.", "")] and voice.transcript == "Hello."
        assert info == "0.2 s, 'Hello.'"

    def test_part_of_a_long_recording_can_be_chosen(self, load_module, make_engine):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        audio = {"waveform": torch.zeros(1, 1, 60 * 8000), "sample_rate": 8000}
        execute = load_module("voice").HiggsTTSVoice.execute
        said = "Far more words than anybody can say in so short a time as a fifth of a second is."
        _, info = execute(patcher, audio, said, start=12.5, length=7.0).args
        assert patcher.engine.calls[-1][:2] == ((1, 56000), 8000)
        assert info.startswith(f"0.2 s, {said!r}\nWarning: The transcript is too long for 0.2 s of speech")
        with pytest.raises(HiggsError, match=r"^Higgs Voice: start is 61 s, but the clip is 60\.0 s long"):
            execute(patcher, audio, start=61.0)

    def test_a_recording_that_is_too_long_names_start_and_length(self, load_module, make_engine):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        audio = {"waveform": torch.zeros(1, 1, 60 * 8000), "sample_rate": 8000}
        voice, listen = load_module("voice").HiggsTTSVoice, load_module("transcribe").HiggsTTSTranscribe
        told = r"the clip is 60\.0 s long, but at most 30 s can be used\. Set start .* and length to between 5 and 30"
        with pytest.raises(HiggsError, match=f"^Higgs Voice: {told}"):
            voice.execute(patcher, audio)
        with pytest.raises(HiggsError, match=f"^Higgs Transcribe: {told}"):
            listen.execute(audio, "whisper-small")
        with pytest.raises(HiggsError, match=r"^Higgs Voice: the clip is 30\.1 s long"):
            voice.execute(patcher, audio, start=29.95)
        assert patcher.engine.calls == []

    def test_an_overlong_file_is_refused_and_points_to_higgs_voice(self, load_module, make_engine, tmp_path):
        soundfile = pytest.importorskip("soundfile")
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        (tmp_path / "input").mkdir()
        soundfile.write(tmp_path / "input" / "me.wav", torch.zeros(8000 * 40).numpy(), 8000)
        with pytest.raises(
            HiggsError, match=r"^Higgs Load Voice: me\.wav is 40 s long.*Higgs Voice instead, and choose a part"
        ):
            load_module("voice_files").HiggsTTSLoadVoice.execute("input/me.wav", patcher)
        assert patcher.engine.calls == []

    def test_a_missing_transcript_is_a_warning(self, load_module, make_engine):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        audio = {"waveform": torch.zeros(1, 2, 800), "sample_rate": 44100}
        _, info = load_module("voice").HiggsTTSVoice.execute(patcher, audio, " ").args
        assert info.startswith("0.2 s\nWarning: ") and "transcript" in info

    def test_several_clips_make_one_voice(self, load_module, make_engine):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        execute = load_module("voice").HiggsTTSVoice.execute
        audio, *others = map(built_in, ("oliver", "amber", "henry"))
        loud = {**others[0], "waveform": (9 * others[0]["waveform"]).clamp(-1, 1)}
        more = {"audio_2": loud, "audio_3": None, "audio_4": others[1]}
        words = [built_in_words(name) for name in ("oliver", "amber", "henry")]
        voice, info = execute(patcher, audio, "\n\n".join(words), more_clips=more).args
        ((_, size), rate, transcript, _) = patcher.engine.calls[-1]
        assert (rate, transcript) == (24000, f"{words[0]} {words[2]}") and 11 < size / rate < 13
        assert voice.transcript == transcript
        *_, made, left = info.splitlines()
        assert made == "Made of: audio, audio_4." and left.startswith("audio_2 was left out. The clip is overdriven: ")
        execute(patcher, audio, length=3.0, more_clips=more)
        assert 7 < patcher.engine.calls[-1][0][1] / rate < 9

    @pytest.mark.parametrize("more", [None, {}, {"audio_2": None}])
    def test_a_single_clip_is_left_as_it_is(self, load_module, make_engine, more):
        patcher, seen = load_module("comfy.patcher").make_patcher(make_engine()), []
        patcher.engine.encode_voice = lambda wav, rate, transcript=None, name="": (
            seen.append((wav, rate, transcript)) or Voice(torch.zeros(5, 8, dtype=torch.int64), transcript)
        )
        audio = {**built_in("oliver"), "waveform": built_in("oliver")["waveform"] / 30}
        load_module("voice").HiggsTTSVoice.execute(patcher, audio, "One.\nTwo.", more_clips=more)
        ((wav, rate, transcript),) = seen
        assert wav.equal(audio["waveform"][0]) and (rate, transcript) == (audio["sample_rate"], "One.\nTwo.")

    @pytest.mark.parametrize(
        "transcript, second, told",
        [
            ("One.", {}, r"there are 2 clips, but the transcript has 1 line\. Write one line per clip"),
            ("One.\nTwo.\nThree.", {}, r"there are 2 clips, but the transcript has 3 lines\."),
            ("", {"waveform": torch.zeros(2, 1, 8)}, "the audio_2 input has the shape"),
            ("", {"waveform": torch.zeros(1, 1, 48000)}, "audio_2: The reference clip is silent"),
            ("", {"waveform": torch.ones(1, 1, 4800)}, r"audio_2: The reference clip is 0\.\d+ s long, too short"),
            ("", {"sample_rate": "24000"}, "the audio_2 input is .*, not audio"),
        ],
    )
    def test_clips_that_do_not_fit_are_named(self, load_module, make_engine, transcript, second, told):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        more = {"audio_2": {**built_in("amber"), **second}}
        with pytest.raises(HiggsError, match=f"^Higgs Voice: {told}"):
            load_module("voice").HiggsTTSVoice.execute(patcher, built_in("oliver"), transcript, more_clips=more)
        assert patcher.engine.calls == []

    @pytest.mark.parametrize("audio", [None, {"waveform": torch.zeros(2, 1, 8), "sample_rate": 24000}])
    def test_a_missing_clip_or_several_are_refused(self, load_module, make_engine, audio):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        with pytest.raises(HiggsError, match=r"^Higgs Voice: .*audio"):
            load_module("voice").HiggsTTSVoice.execute(patcher, audio)
        assert patcher.engine.calls == []


class TestDownload:
    LABEL = next(iter(DOWNLOADS))

    def test_a_download_goes_into_the_pack_s_folder_with_a_progress_bar(
        self, load_module, comfy, monkeypatch, tmp_path
    ):
        load, seen = load_module("load"), []
        comfy["server"].PromptServer.instance.client_id = "me"

        def fetch(label, root, on_progress):
            seen.append((label, root))
            on_progress(0.25, "a quarter")
            return root / "got"

        monkeypatch.setattr(load, "download_checkpoint", fetch)
        assert load.download(f"download: {self.LABEL}", "7") == tmp_path / "disk" / "got"
        assert seen == [(self.LABEL, tmp_path / "disk")] and comfy["comfy.utils"].bars == [(250, 1000)]
        assert [line for line, *_ in comfy["server"].told] == ["a quarter", "downloaded"]

    def test_stop_ends_every_thread_and_then_the_node(self, load_module, comfy, monkeypatch, interrupted):
        load, refused = load_module("load"), []

        def fetch(label, root, on_progress):
            comfy["comfy.model_management"].stop = True
            for _thread in range(2):
                with pytest.raises(OSError):
                    on_progress(0.5, "half")
                refused.append(True)
            raise HiggsError("could not be downloaded")

        monkeypatch.setattr(load, "download_checkpoint", fetch)
        with pytest.raises(interrupted):
            load.download(f"download: {self.LABEL}", "7")
        assert refused == [True, True]

    def test_an_unlisted_download_is_refused(self, load_module):
        answer = load_module("load").HiggsTTSLoadModel.validate_inputs("download: Something else")
        assert answer.startswith("Higgs Load Model: ")
        assert load_module("load").HiggsTTSLoadModel.validate_inputs(f"download: {self.LABEL}") is True


class TestSaveVoice:
    @pytest.fixture
    def save(self, load_module):
        return load_module("voice_files").HiggsTTSSaveVoice

    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "models" / "voices" / "anna.safetensors"

    def test_save_voice_runs_again_only_if_its_file_changed(self, save, path):
        """ComfyUI runs a node again, and all behind it, if `fingerprint_inputs` returns something else."""
        fingerprints = [save.fingerprint_inputs("anna")]
        save.execute(VOICE, "anna")
        fingerprints.append(save.fingerprint_inputs("anna"))
        assert fingerprints[0] == fingerprints[1]
        path.unlink()
        assert save.fingerprint_inputs("anna") == save.fingerprint_inputs("anna") != fingerprints[1]
        save.execute(VOICE, "anna")
        again = save.fingerprint_inputs("anna")
        OTHER.save(path)
        assert path.is_file() and save.fingerprint_inputs("anna") != again

    def test_an_unchanged_voice_is_not_written_again(self, save, path):
        save.execute(VOICE, "anna")
        before = path.stat().st_mtime_ns
        save.execute(VOICE, "anna", overwrite=True)
        assert path.stat().st_mtime_ns == before

    @pytest.mark.parametrize("held", ["another voice", "no voice"])
    def test_an_existing_voice_is_kept_and_the_run_continues(self, save, path, held):
        """Without overwrite the voice gets the next free number. The node reports it and continues."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no voice", encoding="utf-8") if held == "no voice" else OTHER.save(path)
        before = path.read_bytes()
        output = save.execute(VOICE, "anna")
        second = path.with_name("anna 2.safetensors")
        assert path.read_bytes() == before and Voice.load(second).transcript == "One." and output.args == (VOICE,)
        assert all(part in output.ui.args[0] for part in ("anna 2.safetensors", str(path.parent), "(anna.safetensors "))
        written = second.stat().st_mtime_ns
        save.execute(VOICE, "anna")
        third = Voice(torch.full((9, 8), 7), "Three.")
        save.execute(third, "anna")
        assert second.stat().st_mtime_ns == written
        assert sorted(entry.stem for entry in path.parent.iterdir()) == ["anna", "anna 2", "anna 3"]
        save.execute(VOICE, "anna", overwrite=True)
        assert Voice.load(path).transcript == "One."

    def test_a_deleted_numbered_voice_is_saved_again(self, save, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        OTHER.save(path)
        save.execute(VOICE, "anna")
        before = save.fingerprint_inputs("anna")
        path.with_name("anna 2.safetensors").unlink()
        assert save.fingerprint_inputs("anna") != before


class TestDialogue:
    @pytest.fixture
    def run(self, load_module, make_engine):
        patcher = load_module("comfy.patcher").make_patcher(make_engine())
        patcher.model.label, patcher.model.warnings = "higgs", ()
        node = load_module("dialogue").HiggsTTSDialogue

        def run(script, **given):
            audio, speakers, info, *_ = node.execute(patcher, script, **given).args
            return patcher.engine.calls[-1], audio, speakers, info

        run.engine, run.node = patcher.engine, node
        return run

    def test_what_is_wrong_with_a_voice_is_told_once(self, run):
        voice = replace(VOICE, transcript=None, name="bob")
        *_, info = run("Anna: One.\nTom: Two.", voices={"voice_1": voice, "voice_2": voice})
        assert info.count("Warning: Voice bob: Cloning works less well without a transcript.") == 1

    def test_sentences_are_taken_again_by_their_numbers(self, run):
        run("Anna: One.\nTom: Two.", retakes="2:1")
        assert run.engine.retakes == {1: 1}

    @pytest.mark.parametrize(
        "script",
        [
            "[1] One.\n[2] Two.",
            "Speaker 1: One.\nSpeaker 2: Two.",
            "anna: One.\nTOM: Two.",
            "Cleo = 1\nBen = tom\nCleo: One.\nBen: Two.",
            "Tom = 2\nAnna: One.\nTom: Two.",
        ],
    )
    def test_a_voice_is_matched_by_name_or_socket(self, run, script):
        voices = {"voice_1": replace(VOICE, name="Anna"), "voice_2": replace(OTHER, name="Tom"), "voice_3": None}
        (turns, given, params, scene, even), audio, speakers, info = run(script, voices=voices, turn_gap=0.5, seed=7)
        assert [turn.text for turn in turns] == ["One.", "Two."] and (params.seed, params.turn_gap, scene, even) == (
            7,
            0.5,
            None,
            True,
        )
        assert [given[turn.speaker] for turn in turns] == [voices["voice_1"], voices["voice_2"]]
        assert audio["waveform"].shape == (1, 1, 20) and speakers["waveform"].shape == (2, 1, 20)
        (first,), (second,) = speakers["waveform"]
        assert first.nonzero().flatten().tolist() == list(range(5))
        assert second.nonzero().flatten().tolist() == list(range(10, 15))
        assert "Speakers: 1 " in info and "Warning" not in info

    def test_unmatched_speakers_get_the_sockets_in_order(self, run):
        script = "Cleo: One.\nBen: Two.\nCleo: Three.\nBen: Four.\nDora: Five.\nDora: Six."
        (_, given, *_), *_ = run(script, voices={"voice_1": replace(VOICE, name="Anna"), "voice_2": OTHER})
        assert list(given) == ["Cleo", "Ben"] and given["Cleo"].name == "Anna" and given["Ben"] is OTHER

    def test_a_voice_with_the_name_of_a_socket_does_not_stand_for_it(self, run):
        first, second = replace(VOICE, name="speaker 2"), replace(OTHER, name="S1")
        (_, given, *_), *_ = run("Anna: One.\nTom: Two.", voices={"voice_1": first})
        assert given == {"Anna": first}
        (_, given, *_), *_ = run("[1] One.\n[2] Two.", voices={"voice_1": first, "voice_2": second})
        assert given == {"1": first, "2": second}

    @pytest.mark.parametrize("script", ["Ruth: One.\nTom: Two.", "Ruth: One.\nTom: Two.\nRuth: Three.\nTom: Four."])
    def test_connected_voices_come_before_files_in_models_voices(self, run, library, script):
        """Ruth is also a built-in clip's name, and Tom a file's."""
        replace(OTHER, name="file").save(library / "tom.safetensors")
        voices = {"voice_1": replace(VOICE, name="mine"), "voice_2": replace(OTHER, name="hers")}
        (_, given, *_), *_ = run(script, voices=voices)
        assert given == {"Ruth": voices["voice_1"], "Tom": voices["voice_2"]}
        (_, given, *_), *_ = run(f"{script}\n[1] Five.", voices=voices)
        assert [given[name].name for name in ("Ruth", "Tom", "1")] == ["ruth", "file", "mine"]

    def test_differently_spelled_names_match_connected_voices(self, run):
        voices = {"voice_1": VOICE, "voice_2": OTHER}
        for script in (
            "**Anna:** One.\n**Tom:** Two.",
            "ANNA\nOne.\n\nTOM\nTwo.",
            "It is dark.\n- Anna: A.\n- Tom: B.",
        ):
            (_, given, *_), *_, info = run(script, voices=voices)
            assert {name.casefold(): voice for name, voice in given.items() if name} == {"anna": VOICE, "tom": OTHER}
            assert "Warning: A" in info and "only one line each" in info
        assert "Warning: Text before the first name is spoken in the voice of Anna." in info

    def test_a_manner_becomes_a_tag_of_the_model(self, run):
        (turns, *_), *_, info = run("Anna (slowly, whispering): One.\nTom: Two.")
        assert [turn.text for turn in turns] == ["<|prosody:speed_slow|>One.", "Two."]
        assert 'Warning: "(whispering)" was left out for Anna: the model has not learned <|style:whispering|>.' in info

    def test_ambiguous_scripts_are_warned_about(self, run):
        voices = {"voice_1": VOICE, "voice_2": replace(OTHER, name="oliver")}
        *_, info = run("Anna, softly: One.\nTom, loudly: Two.", voices=voices)
        assert "Warning: This looks like a script, but no speaker was found" in info
        assert "Warning: No speaker uses the connected voice 2 (oliver)." in info
        *_, info = run("Anna: One.\nTom: Two.\nAnna: Three.\nTom: Four.", voices=voices)
        assert "Warning" not in info

    def test_a_clip_in_use_is_given_to_no_other_speaker(self, run):
        run.engine.planner.card = types.SimpleNamespace(one_voice=True)
        voices = {"voice_1": replace(VOICE, name="amber"), "voice_2": replace(OTHER, name="Oliver")}
        (_, given, *_), *_ = run("Anna: One.\nTom: Two.\nCleo: Three.", voices=voices)
        assert [voice.name for voice in given.values()] == ["amber", "Oliver", "clara"]

    @pytest.mark.parametrize(
        "script", ["Cleo = anna.safetensors\nCleo: One.", "Cleo = Anna\nCleo: One.", "Anna: One.\nAnna: Two."]
    )
    def test_a_file_in_models_voices_is_matched_by_name(self, run, library, script):
        VOICE.save(library / "anna.safetensors")
        (turns, given, *_), *_ = run(script)
        voice = given[turns[0].speaker]
        assert torch.equal(voice.codes, VOICE.codes) and voice.transcript == VOICE.transcript
        before = run.node.fingerprint_inputs(script, model=None)
        OTHER.save(library / "anna.safetensors")
        assert run.node.fingerprint_inputs(script, model=None) != before
        assert run.node.fingerprint_inputs(None) == ["", False]

    def test_a_declared_clip_below_input_speaks_again_once_it_has_changed(self, run, tmp_path):
        script = "Cleo = input/cleo.wav\nBen = 1\nCleo: One.\nBen: Two."
        assert run.node.fingerprint_inputs(script) == ["", False], "no error yet: Cleo's clip is not there"
        (tmp_path / "input").mkdir()
        (tmp_path / "input" / "cleo.wav").write_bytes(b"a clip")
        assert len(run.node.fingerprint_inputs(script)) == 3

    def test_a_script_header_does_not_hide_the_sockets(self, run):
        script = "Cleo = 1\nCleo: One.\n[2] Two.\n[2] Three.\nTOM: Four."
        voices = {"voice_1": VOICE, "voice_2": replace(OTHER, name="tom")}
        (turns, given, *_), _, _, info = run(script, voices=voices)
        assert [turn.speaker for turn in turns] == ["Cleo", "2", "2", "TOM"] and "1 Cleo, 2 2, 3 TOM" in info
        assert given["Cleo"] is VOICE and given["2"] is given["TOM"] is voices["voice_2"]

    def test_built_in_voices_are_matched_by_name(self, run):
        (_, given, *_), *_ = run("amber: One.\nOliver: Two.")
        assert {speaker: voice.name for speaker, voice in given.items()} == {"amber": "amber", "Oliver": "oliver"}

    def test_a_one_voice_model_gets_built_in_clips_for_missing_voices(self, run, load_module):
        (_, given, *_), *_ = run("Anna: One.\nTom: Two.\nAnna: Three.\nTom: Four.")
        assert given == {}
        run.engine.planner.card = types.SimpleNamespace(one_voice=True)
        (_, given, *_), *_ = run("Anna: One.\nTom: Two.\nAnna: Three.\nTom: Four.")
        clips = [path.stem for path in load_module("library.voice_folders").built_in_voices()]
        assert [voice.name for voice in given.values()] == clips[:2] and list(given) == ["Anna", "Tom"]
        (_, given, *_), *_ = run("Only one speaks.")
        assert given == {}

    def test_text_before_the_first_name_gets_the_first_voice(self, run):
        (turns, given, *_), *_ = run("Once upon a time.\n[1] One.", voices={"voice_1": VOICE})
        assert [turn.speaker for turn in turns] == ["", "1"] and given[""] is given["1"] is VOICE

    @pytest.mark.parametrize(
        ("script", "voices", "error"),
        [
            ("  # nothing", {}, "the script is empty"),
            ("Ann = gone.wav\nAnn: One.", {}, "there is no voice 'gone.wav'"),
            (
                "[1] Zero.\n[Cleo] One.\n[Cleo] Two.",
                {"voice_1": VOICE},
                "Cleo has no voice.* 1. Give it a voice",
            ),
        ],
    )
    def test_errors_name_the_node_and_the_remedy(self, run, script, voices, error):
        with pytest.raises(HiggsError, match=f"Higgs Dialogue: {error}"):
            run(script, voices=voices)

    def test_a_list_of_pronunciations_that_is_no_text_is_refused(self, run, library):
        (library / "pronunciations.txt").write_bytes(b"{\\rtf1 York = Yorrk}")
        with pytest.raises(HiggsError, match=r"Higgs Dialogue: .*pronunciations\.txt cannot be read \(it is RTF, not"):
            run("Anna: Hi.\nTom: Hi.")

    @pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
    def test_pronunciations_are_applied(self, run, library, encoding):
        listed = "York = Yorrk\nNguyen = Nwin\n[Tom]\nYork = Jork\n"
        (library / "pronunciations.txt").write_text(listed, encoding=encoding)
        (turns, *_), *_ = run("Anna: Nguyen of York.\nTom: York.\nAnna: a\nTom: b", pronunciations="Nguyen = Win")
        assert [turn.text for turn in turns[:2]] == ["Win of Yorrk.", "Jork."]
        assert "York" in run.node.fingerprint_inputs("Anna: Hi.")[0]
        with pytest.raises(HiggsError, match=r"pronunciations, line 1: 'no entry' is not"):
            run("Anna: Hi.", pronunciations="no entry")
