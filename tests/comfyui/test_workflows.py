"""Every workflow of the pack, run as the browser runs it."""

from __future__ import annotations

import json
import re
import shutil
import urllib.parse

import numpy as np
import pytest
import torch
from higgs_tts.training import hearing

from .server import ROOT, TODAY

FRAMES, FRAME_SAMPLES, RATE = 40, 960, 24000
VOICES = ["HiggsTTSVoice", "HiggsTTSSaveVoice", "HiggsTTSLoadVoice"]
SPEAKING = ["HiggsTTSSpeak", "HiggsTTSDialogue", "HiggsTTSLines", "HiggsTTSSubtitles", "HiggsTTSBook"]
NODES = [
    "HiggsTTSLoadModel",
    "HiggsTTSLoadLoRA",
    *VOICES,
    *SPEAKING,
    "HiggsTTSLipSync",
    "HiggsTTSTranscribe",
    "HiggsTTSTrainVoice",
    "HiggsTTSServer",
]


def check_speech(outcome, class_type="PreviewAudio", chunks=1):
    wave, rate = outcome.audio(class_type)
    assert (rate, wave.shape[1]) == (RATE, 1)
    assert len(wave) == chunks * FRAMES * FRAME_SAMPLES
    assert np.isfinite(wave).all() and np.abs(wave).max() > 0.01
    info = outcome.text()
    assert f"{chunks * FRAMES / 25:.1f} s of speech in " in info and "frames/s" in info and "Backend: " in info
    return wave


def test_the_pack_s_nodes_are_listed_with_tooltips(comfy):
    for node in NODES:
        described = comfy.get(f"/object_info/{node}")[node]
        assert described["category"] == "audio/tts/Higgs" and described["search_aliases"]
        inputs = {**described["input"]["required"], **described["input"].get("optional", {})}
        assert all(options["tooltip"] for _, options in inputs.values())
        assert comfy.fetch(f"/extensions/ComfyUI-Higgs-TTS/docs/{node}.md").startswith(b"# Higgs ")
    titles = comfy.get("/workflow_templates")["ComfyUI-Higgs-TTS"]
    assert sorted(titles) == sorted(path.stem for path in TODAY.glob("*.json"))
    for title in map(urllib.parse.quote, titles):
        assert comfy.get(f"/api/workflow_templates/ComfyUI-Higgs-TTS/{title}.json")["nodes"]
        assert comfy.fetch(f"/api/workflow_templates/ComfyUI-Higgs-TTS/{title}.jpg").startswith(b"\xff\xd8")
    names = comfy.get("/object_info/HiggsTTSLoadModel")["HiggsTTSLoadModel"]["input"]["required"]["model"][1]["options"]
    assert {"higgs-tts-3-4b", "higgs/v2"} <= set(names) and any(name.startswith("download: ") for name in names)


@pytest.mark.parametrize("name", ["speak", "clone_voice"])
def test_short_workflows_speak(comfy, workflow, name):
    outcome = comfy.run(workflow(name))
    check_speech(outcome)
    assert "frame limit" in outcome.text(), "random weights find no end, and the audio is kept all the same"
    progress = [(data["value"], data["max"]) for data in outcome.data("progress")]
    assert len(progress) > 1 and progress == sorted(progress) and progress[-1] == (FRAMES, FRAMES)


def test_a_speaking_node_runs_without_a_node_behind_it(comfy, workflow):
    prompt = {key: node for key, node in workflow("speak").items() if node["class_type"].startswith("HiggsTTS")}
    assert [node["class_type"] for node in prompt.values()] == ["HiggsTTSLoadModel", "HiggsTTSSpeak"]
    assert not comfy.run(prompt).error


def test_a_missing_checkpoint_is_reported_once_and_any_device_accepted(comfy, workflow):
    missing = comfy.run(workflow("speak", HiggsTTSLoadModel={"model": "nothing", "device": "gpu:7"})).error
    assert missing.count("Higgs Load Model: ") == 1 and "nothing" in missing, missing
    assert (
        "This machine has no device gpu:7" in comfy.run(workflow("speak", HiggsTTSLoadModel={"device": "gpu:7"})).text()
    )


def test_long_narration_is_split_and_saved(comfy, workflow):
    prompt = workflow("long_narration", HiggsTTSSpeak={"chunk_seconds": 15.0})
    outcome = comfy.run(prompt)
    chunks = int(outcome.text().split(" chunks")[0].rsplit(None, 1)[-1])
    assert chunks > 1
    check_speech(outcome, "SaveAudio", chunks)
    assert (comfy.base / "models" / "voices" / "narrator.safetensors").is_file()


def test_words_are_there_once_their_output_is_connected(fresh, template):
    prompt = template("speak")
    (speak,) = (key for key, node in prompt.items() if node["class_type"] == "HiggsTTSSpeak")
    (shown,) = (node for node in prompt.values() if node["class_type"] == "PreviewAny")

    def run():
        """Return what is shown, and whether the text was spoken."""
        outcome = fresh.run(prompt)
        assert not outcome.error
        return outcome.text(), speak in {data["node"] for data in outcome.data("executing")}

    assert run()[1] and not run()[1]
    shown["inputs"]["source"] = [speak, 3]
    words, spoken = run()
    rows = json.loads(words)["words"]
    assert spoken and " ".join(row["word"] for row in rows) == prompt[speak]["inputs"]["text"]
    assert not run()[1]
    prompt[speak]["inputs"]["srt_words"] = 4
    shown["inputs"]["source"] = [speak, 2]
    lines = re.findall(r"-->.*\n(.*)\n", run()[0])
    assert " ".join(lines) == prompt[speak]["inputs"]["text"] and max(len(line.split()) for line in lines) == 4


def test_each_speaker_of_a_script_has_its_voice(fresh, template):
    script = "Anna = 1\nTom = 2\n\nAnna: One. [pause 2]\nTom: Two.\nAnna: Three."
    prompt = template("dialogue", HiggsTTSDialogue={"script": script, "max_frames": 100})
    outcome = fresh.run(prompt)
    (wave, rate), info = outcome.audio(), outcome.text()
    assert "Speakers: 1 Anna, 2 Tom" in info and "Complete." in info and "Warning" not in info, info
    assert rate == RATE and wave.shape[1] == 1 and np.abs(wave).max() > 0.05
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (wave[:, 0] == 0).astype(int), [0]])))
    assert 2 * RATE <= (edges[1::2] - edges[::2]).max() < 3 * RATE
    prompt["5"]["inputs"]["audio"] = ["4", 1]
    (anna, _), (tom, _) = fresh.run(prompt).audios("PreviewAudio")
    assert anna.shape == tom.shape == wave.shape and np.abs(anna + tom - wave).max() < 1e-4


def test_a_name_without_a_voice_is_an_error_on_the_node(fresh, template):
    script = "[1] One.\n[Cleo] Two.\n[Cleo] Three."
    outcome = fresh.run(template("dialogue", HiggsTTSDialogue={"script": script}))
    assert "Higgs Dialogue: Cleo has no voice" in outcome.error


def test_lines_become_files_and_only_changed_ones_are_spoken_again(fresh, template):
    soundfile = pytest.importorskip("soundfile")
    folder = fresh.base / "output" / "game" / "shop"

    def run(**given):
        """Return each file's outcome, and the nodes that ran."""
        outcome = fresh.run(template("lines", HiggsTTSLines={"folder": "game", "max_frames": 100, **given}))
        report = outcome.text("HiggsTTSLines")
        assert "Warning" not in report, report
        rows = [line.split(": ")[0] for line in report.splitlines() if line.endswith(", spoken")]
        return rows, {data["node"] for data in outcome.data("executing")} - {None}, outcome

    rows, _, outcome = run()
    assert rows == ["shop/welcome", "shop/prices", "shop/thanks", "shop/bye"]
    heard, rate = outcome.audio()
    made = {path.name: soundfile.read(path, dtype="float32")[0] for path in folder.glob("*.wav")}
    assert rate == RATE and sorted(made) == ["bye.wav", "prices.wav", "thanks.wav", "welcome.wav"]
    assert np.abs(made["welcome.wav"] - heard[: len(made["welcome.wav"]), 0]).max() < 1e-3
    assert all(len(wave) > RATE // 2 and np.abs(wave).max() > 0.05 for wave in made.values())
    assert "4" not in run()[1], "nothing has changed"
    (folder / "thanks.wav").unlink()
    rows, nodes, _ = run()
    assert rows == ["shop/thanks"] and "4" in nodes and "4" not in run()[1]
    assert np.array_equal(soundfile.read(folder / "thanks.wav", dtype="float32")[0], made["thanks.wav"])
    changed = template("lines")["4"]["inputs"]["lines"].replace("Come back soon.", "See you.")
    assert run(lines=changed)[0] == ["shop/bye"] and run()[0] == ["shop/bye"], "also when it changes back"
    assert np.array_equal(soundfile.read(folder / "bye.wav", dtype="float32")[0], made["bye.wav"])


def test_a_list_of_texts_gives_one_row_per_text(fresh, template):
    prompt = template("lines", HiggsTTSLines={"folder": "listed", "max_frames": 50, "lines": ["9", 0]})
    for number, text in ("7", "Welcome."), ("8", "Come back soon."):
        prompt[number] = {"class_type": "PrimitiveString", "inputs": {"value": text}}
    prompt["9"] = {"class_type": "CreateList", "inputs": {"inputs.input0": ["7", 0], "inputs.input1": ["8", 0]}}
    for text, state in ("Come back soon.", "2 spoken."), ("See you.", "1 spoken, 1 unchanged."):
        prompt["8"]["inputs"]["value"] = text
        assert fresh.run(prompt).text("HiggsTTSLines").splitlines()[0].endswith(state)
    assert sorted(path.name for path in (fresh.base / "output" / "listed").glob("*.wav")) == ["001.wav", "002.wav"]


def test_a_faulty_sheet_is_an_error_on_the_node(fresh, template):
    outcome = fresh.run(template("lines", HiggsTTSLines={"lines": "id,text\na,One, two."}))
    assert "Higgs Lines: row 1 has 3 cells" in outcome.error
    outcome = fresh.run(template("lines", HiggsTTSLines={"folder": "../elsewhere"}))
    assert "Higgs Lines: folder is '../elsewhere'" in outcome.error


def test_subtitles_are_spoken_at_their_times(fresh, template):
    prompt = template("subtitles")
    outcome = fresh.run(prompt)
    (wave, rate), info = outcome.audio(), outcome.text()
    assert rate == RATE and wave.shape[1] == 1 and 10 * RATE <= len(wave) < 13 * RATE
    assert info.startswith("4 cues: ") and "spoken faster" in info and "Speakers: 1 Anna, 2 Tom" in info, info
    assert "Warning" not in info, info
    assert not np.abs(wave[: RATE // 2 - 1]).any() and np.abs(wave[RATE // 2 : 2 * RATE]).max() > 0.05
    prompt["7"]["inputs"]["source"] = ["5", 3]
    report = fresh.run(prompt).text().splitlines()
    assert len(report) == 4 and report[2].startswith("3  00:00:0") and "spoken " in report[2]


def test_a_film_is_dubbed_in_its_actors_voices(fresh, template):
    """The video's sound is earlier speech; the subtitles lie beside it."""
    av = pytest.importorskip("av")
    made, rate = fresh.run(template("subtitles")).audio()
    with av.open(str(fresh.base / "input" / "film.mp4"), "w") as film:
        track = film.add_stream("aac", rate=rate, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.ascontiguousarray(made.T), format="fltp", layout="mono")
        sound.sample_rate = rate
        for packet in [*track.encode(sound), *track.encode(None)]:
            film.mux(packet)
    (fresh.base / "input" / "film.srt").write_text(template("subtitles")["5"]["inputs"]["srt"], encoding="utf-16")
    outcome = fresh.run(template("dub"))
    (wave, rate), info = outcome.audio(), outcome.text()
    assert "Voice of Anna: " in info and "Voice of Tom: " in info and "Warning" not in info, info
    assert rate == RATE and abs(len(wave) - len(made)) < RATE / 4 and np.abs(wave).max() > 0.05
    (fresh.base / "input" / "film.srt").unlink()
    assert "Higgs Subtitles: " in (error := fresh.run(template("dub")).error) and "input folder" in error


BOOK = """# One

The first chapter has a first sentence. It goes on for a while, so that somebody can press Cancel.

Then comes another paragraph. It is no longer than the first one was, and no shorter.

# Two

The second chapter is short.
"""


def test_a_stopped_book_resumes(fresh, template):
    def run(folder, on_event=None, **given):
        return fresh.run(template("book", HiggsTTSBook={"text": BOOK, "folder": folder, **given}), on_event)

    def made(folder):
        paths = (fresh.base / "output" / folder).glob("0*")
        return {path.name: path.read_bytes() for path in paths}

    sent = []

    def stop(message):
        kept = list((fresh.base / "output" / "stopped" / "spoken").rglob("*.safetensors"))
        if message["type"] == "progress" and len(kept) > 1 and not sent:
            sent.append(fresh.post("/interrupt", {}))

    outcome = run("stopped", stop)
    assert sent and outcome.data("execution_interrupted") and made("stopped") == {}
    report = run("stopped").text("HiggsTTSBook")
    assert "2 chapters, " in report and "01 One.flac: " in report and " chunks reused" in report, report
    assert " 0 chunks reused" not in report and "Warning" not in report, report
    outcome = run("whole")
    report = outcome.text("HiggsTTSBook")
    assert " 0 chunks reused" in report and outcome.data("progress")[-1]["value"] > 900
    assert made("stopped") == made("whole") and len(made("whole")) == 4
    assert "3" not in {data["node"] for data in run("whole").data("executing")}, "nothing has changed"
    (fresh.base / "output" / "whole" / "01 One.srt").unlink()
    report = run("whole").text("HiggsTTSBook")
    assert " s, made" in report and "02 Two.flac: " in report and " s, unchanged" in report, report


def test_a_book_from_a_file_becomes_an_m4b_with_chapters(fresh, template):
    (fresh.base / "input" / "book.md").write_text(BOOK, encoding="utf-8")
    options = fresh.get("/object_info/HiggsTTSBook")["HiggsTTSBook"]["input"]["required"]["book"][1]["options"]
    assert "book.md" in options
    outcome = fresh.run(template("book", HiggsTTSBook={"book": "book.md", "folder": "bound", "format": "m4b"}))
    assert re.search(r"^book\.m4b: \d+\.\d s, made$", report := outcome.text("HiggsTTSBook"), re.MULTILINE), report
    av = pytest.importorskip("av")
    with av.open(str(fresh.base / "output" / "bound" / "book.m4b")) as file:
        assert [mark["metadata"]["title"] for mark in file.chapters()] == ["One", "Two"]
        assert file.duration > 10_000_000
    missing = fresh.run(template("book", HiggsTTSBook={"book": "none.epub"}))
    assert "there is no book 'none.epub'" in missing.error


def test_v2_speaks_with_a_scene(comfy, workflow):
    changes = {"HiggsTTSLoadModel": {"model": "higgs/v2"}, "HiggsTTSSpeak": {"scene": "A quiet room."}}
    check_speech(comfy.run(workflow("speak", **changes)))


def test_a_name_from_another_machine_is_found(comfy, workflow):
    check_speech(comfy.run(workflow("speak", HiggsTTSLoadModel={"model": "TTS\\boson\\Higgs-TTS-3-4b"})))


EMBEDDED = {"HiggsTTSLoadModel": {"model": "embedded (small, English)"}}
SENTENCE = "The train leaves at half past seven."
LOWER = 0.8  # the pitch of a clip that is played slower


@pytest.fixture
def say(comfy, workflow):
    """say(workflow, text, **changes) -> [S] samples of speech that ended by itself, from the embedded checkpoint."""

    def run(name, text, class_type="PreviewAudio", chunk_seconds=30.0, **changes):
        spoken = {"text": text, "seed": 1, "max_frames": 250, "chunk_seconds": chunk_seconds}
        outcome = comfy.run(workflow(name, **EMBEDDED, HiggsTTSSpeak=spoken, **changes))
        wave, rate = outcome.audio(class_type)
        assert rate == RATE and "Complete." in outcome.text()
        return torch.from_numpy(wave[:, 0].copy())

    return run


@pytest.fixture
def clip(comfy, say):
    """The name of a clip with the checkpoint's own speech played slower: a lower, larger voice."""
    soundfile = pytest.importorskip("soundfile")
    wave = say("speak", SENTENCE)
    soundfile.write(comfy.base / "input" / "lower.wav", wave.numpy(), round(LOWER * RATE))
    return "lower.wav"


def test_the_embedded_checkpoint_speaks_the_text(say):
    wave = say("speak", SENTENCE)
    assert 1.5 < len(wave) / RATE < 3.5
    pytest.importorskip("pocketsphinx", reason="training/requirements.txt is not installed: nobody listens")
    heard = hearing.RECOGNISERS["pocketsphinx"]()(wave)
    assert hearing.words_of(heard) == hearing.words_of(SENTENCE)


@pytest.mark.parametrize("transcript", ["", SENTENCE])
def test_the_embedded_checkpoint_clones_a_voice(say, clip, transcript):
    text = "Please close the door when you go out."
    clone = say("clone_voice", text, LoadAudio={"audio": clip}, HiggsTTSVoice={"transcript": transcript})
    own = hearing.pitch(say("speak", text))  # of the same sentence, which has a melody of its own
    assert abs(hearing.pitch(clone) / (LOWER * own) - 1) < 0.15


def test_the_embedded_checkpoint_narrates_in_one_voice(say, clip):
    text = f"{SENTENCE} Please close the door when you go out. There are twelve apples on the table."
    changes = {
        "LoadAudio": {"audio": clip},
        "HiggsTTSVoice": {"transcript": SENTENCE},
        "HiggsTTSSaveVoice": {"name": "lower"},
    }
    wave = say("long_narration", text, "SaveAudio", 3.0, **changes)
    assert 5 < len(wave) / RATE < 10
    own = hearing.pitch(say("speak", text, chunk_seconds=3.0))
    heights = [hearing.pitch(part) / (LOWER * own) for part in wave.split(2 * RATE)[:3]]
    assert max(abs(height - 1) for height in heights) < 0.2, heights


@pytest.fixture
def from_library(workflow):
    """Return the speak workflow with a voice of the library, shown in the text output."""

    def make(voice: str) -> dict:
        prompt = workflow("speak")
        prompt["10"] = {"class_type": "HiggsTTSLoadVoice", "inputs": {"voice": voice, "model": ["1", 0]}}
        prompt["2"]["inputs"]["voice"] = ["10", 0]
        prompt["4"]["inputs"]["source"] = ["10", 1]
        return prompt

    return make


def test_library_clips_speak_with_and_without_a_transcript(comfy, from_library):
    voices = comfy.get("/object_info/HiggsTTSLoadVoice")["HiggsTTSLoadVoice"]["input"]["required"]["voice"][1]
    assert {"anna.wav", "bob.wav"} <= set(voices["options"])
    assert "Hello, I am Anna." in comfy.run(from_library("anna.wav")).text()
    assert "without a transcript" in comfy.run(from_library("bob.wav")).text()


def test_a_saved_voice_speaks_like_the_one_it_was_saved_from(comfy, workflow, from_library):
    cloned = workflow("clone_voice", HiggsTTSVoice={"transcript": "Hello, I am Anna."})
    cloned["20"] = {"class_type": "HiggsTTSSaveVoice", "inputs": {"voice": ["3", 0], "name": "team/anna"}}
    first = check_speech(comfy.run(cloned))
    loaded = from_library("team/anna.safetensors")
    loaded["2"]["inputs"]["text"] = cloned["4"]["inputs"]["text"]
    outcome = comfy.run(loaded)
    assert "Hello, I am Anna." in outcome.text()
    np.testing.assert_array_equal(outcome.audio()[0], first)


def test_another_voice_of_the_same_name_is_kept(comfy, workflow):
    def save(**changes):
        prompt = workflow("clone_voice")
        prompt["3"]["inputs"].update(changes)
        prompt["20"] = {"class_type": "HiggsTTSSaveVoice", "inputs": {"voice": ["3", 0], "name": "kept"}}
        return comfy.run({node: prompt[node] for node in ("1", "2", "3", "20")})

    assert not save(transcript="One.").error
    assert not save(transcript="One.").error
    other = save(transcript="Two.")
    assert not other.error and "kept 2.safetensors" in other.text("HiggsTTSSaveVoice")
    voices = comfy.get("/object_info/HiggsTTSLoadVoice")["HiggsTTSLoadVoice"]["input"]["required"]["voice"][1]
    assert {"kept.safetensors", "kept 2.safetensors"} <= set(voices["options"])


def test_changing_the_clip_runs_a_narration_again(comfy, workflow):
    """Its Save Voice has overwrite off, and the name is already taken."""
    spoken = []
    for clip in ("anna.wav", "bob.wav"):
        prompt = workflow("long_narration", HiggsTTSSaveVoice={"name": "again"}, HiggsTTSSpeak={"text": "Short."})
        prompt["3"] = {"class_type": "HiggsTTSLoadVoice", "inputs": {"voice": clip, "model": ["1", 0]}}
        spoken.append(check_speech(comfy.run(prompt), "SaveAudio"))
    assert not np.array_equal(*spoken)
    saved = sorted(path.stem for path in (comfy.base / "models" / "voices").glob("again*"))
    assert saved == ["again", "again 2"]


def test_several_clips_make_one_voice(comfy, workflow):
    def told(*clips):
        prompt = workflow("clone_voice", HiggsTTSVoice={"transcript": ""})
        prompt["9"] = {"class_type": "PreviewAny", "inputs": {"source": ["3", 1]}}
        for number, clip in enumerate(clips, 1):
            name = f"{clip}.flac"
            shutil.copy(ROOT / "engine" / "voice" / "built_in" / name, comfy.base / "input" / name)
            prompt[f"{number}0"] = {"class_type": "LoadAudio", "inputs": {"audio": name}}
            prompt["3"]["inputs"]["audio" if number == 1 else f"more_clips.audio_{number}"] = [f"{number}0", 0]
        return comfy.run({node: prompt[node] for node in prompt if node in "139" or node.endswith("0")}).text_of("9")

    one, two = told("oliver"), told("oliver", "amber", "clara")
    assert one.startswith("6.7 s\n") and "Made of" not in one
    assert two.startswith("17.") and two.endswith("\nMade of: audio, audio_2, audio_3.")


@pytest.mark.parametrize("name", ["speak", "clone_voice", "long_narration", "dialogue"])
def test_every_template_speaks_on_a_fresh_install(fresh, template, name):
    """Unmodified, with the pack's own checkpoint. Voice Cloning needs a clip first."""
    clip = ROOT / "engine" / "voice" / "built_in" / "oliver.flac"
    shutil.copy(clip, fresh.base / "input" / "mine.flac")
    outcome = fresh.run(template(name, HiggsTTSVoice={"clip": "mine.flac"}))
    info = outcome.text()
    assert "Complete." in info and "Model: embedded (small, English)" in info, info
    wave, rate = outcome.audio()
    assert rate == RATE and len(wave) > 2 * RATE and np.abs(wave).max() > 0.05


def test_a_device_of_another_machine_is_replaced_with_a_warning(comfy, workflow):
    outcome = comfy.run(workflow("speak", HiggsTTSLoadModel={"device": "cuda:5"}))
    check_speech(outcome)
    assert "cuda:5" in outcome.text()


def test_a_narration_is_spoken_again_only_after_a_change(comfy, workflow):
    prompt = workflow("long_narration", HiggsTTSSaveVoice={"name": "unchanged"})

    def executed():
        outcome = comfy.run(prompt)
        assert not outcome.error
        return {data["node"] for data in outcome.data("executing")} - {None}

    assert {"4", "5"} <= executed()
    assert not executed()
    (comfy.base / "models" / "voices" / "unchanged.safetensors").unlink()
    assert "4" in executed()
    assert not executed()
