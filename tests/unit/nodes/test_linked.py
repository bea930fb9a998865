"""API workflows may hold a text or a number where only a link makes sense: one sentence each."""

from __future__ import annotations

import json
import pathlib

import pytest
import torch
from higgs_tts.engine import HiggsError, Voice

AUDIO = {"waveform": torch.zeros(1, 1, 48000), "sample_rate": 24000}
VOICE = Voice(torch.zeros(50, 8, dtype=torch.int64), "One.")
SCRIPT = "Anna: Hi.\nTom: Ho."
CUES = "1\n00:00:00,500 --> 00:00:02,500\nAnna: Hi."
SPEAKING = [
    ("speak.HiggsTTSSpeak", {"text": "Hi."}),
    ("dialogue.HiggsTTSDialogue", {"script": SCRIPT}),
    ("lines.HiggsTTSLines", {"lines": "Hi."}),
    ("subtitles.HiggsTTSSubtitles", {"srt": CUES}),
    ("book.HiggsTTSBook", {}),
]
OTHERS = [
    ("lora.HiggsTTSLoadLoRA", {"name": "a"}),
    ("voice.HiggsTTSVoice", {"audio": AUDIO}),
    ("voice_files.HiggsTTSLoadVoice", {"voice": "b.wav"}),
]
LITERALS = ["text", 5, 0.5, True, {}, ["7", 0, 1]]


@pytest.mark.parametrize(
    ("node", "name", "given", "position"),
    [
        ("speak.HiggsTTSSpeak", "HiggsTTSSpeak", {"text": "Hi."}, 3),
        ("dialogue.HiggsTTSDialogue", "HiggsTTSDialogue", {"script": "Hi."}, 4),
        ("lines.HiggsTTSLines", "HiggsTTSLines", {"lines": ["Hi.", "Ho."]}, 2),
        ("subtitles.HiggsTTSSubtitles", "HiggsTTSSubtitles", {"srt": CUES.replace("Anna: ", "")}, 4),
    ],
)
def test_words_are_computed_only_while_their_output_is_connected(
    comfy, load_module, make_engine, node, name, given, position
):
    patcher = load_module("comfy.patcher").make_patcher(make_engine())
    patcher.model.label, patcher.model.warnings = "higgs", ()
    module, _, kind = node.partition(".")
    node = getattr(load_module(module), kind)
    assert node.define_schema().outputs[position].display_name == "words"
    inputs = {"model": patcher, **given}
    inputs = (
        {key: value if key == "lines" else [value] for key, value in inputs.items()} if "lines" in given else inputs
    )

    def outcome(*links):
        nodes = {str(at): {"class_type": "PreviewAny", "inputs": {"source": link}} for at, link in enumerate(links)}
        prompt = {"7": {"class_type": name, "inputs": {}}, "8": {"class_type": "Other", "inputs": {}}, **nodes}
        comfy["server"].queued[:] = [(0, "a prompt", prompt, {}, [], {})]
        for path in (pathlib.Path(load_module("comfy.folders").output()) / "lines").rglob("*"):
            path.unlink()
        before = patcher.engine.calls.count("words")
        words = node.execute(**inputs).args[position]
        return patcher.engine.calls.count("words") - before, words, node.fingerprint_inputs(**given)

    count, none, apart = outcome(["7", 0], ["8", position], "text", ["7", "x", position])
    assert count == 0 and none in ("", '{"words": []}')
    count, words, together = outcome(["7", position])
    assert count == 1 and together != apart
    rows = json.loads(words)["words"]
    assert [row["word"] for row in rows] == (["Hi.", "Ho."] if "lines" in given else ["Hi."])
    assert rows[0]["method"] == "attention" and [row["start"] for row in rows] == sorted(row["start"] for row in rows)
    comfy["server"].PromptServer.instance = None
    assert node.execute(**{**inputs, **({"folder": ["b"]} if "lines" in given else {})}).args[position] == words


@pytest.fixture
def run(load_module, make_engine, library):
    """run("speak.HiggsTTSSpeak", text="Hi") -> the output, with a default model."""
    patcher = load_module("comfy.patcher").make_patcher(make_engine())
    patcher.model.label, patcher.model.warnings, patcher.model.files = "higgs", (), []

    def run(where, **inputs):
        module, _, node = where.partition(".")
        inputs = {"model": patcher, **inputs}
        if "Save" in node or "Transcribe" in node:
            del inputs["model"]
        if module == "lines":
            inputs = {name: listed(value) for name, value in inputs.items()}
        return getattr(load_module(module), node).execute(**inputs)

    return run


def listed(value):
    """Return inputs as ComfyUI passes them to a node that takes lists."""
    return {name: [held] for name, held in value.items()} if isinstance(value, dict) and value else [value]


@pytest.mark.parametrize("literal", LITERALS)
@pytest.mark.parametrize("node, inputs", [*SPEAKING, *OTHERS])
def test_a_linked_value_that_is_no_model_is_refused(run, node, inputs, literal):
    with pytest.raises(HiggsError, match=r"^Higgs \w+( \w+)?: model is .*, not a model\. Connect Higgs Load Model"):
        run(node, **{**inputs, "model": literal})


@pytest.mark.parametrize("literal", LITERALS)
@pytest.mark.parametrize("node, inputs", SPEAKING[1:])
def test_linked_values_that_are_no_voices_are_refused(run, node, inputs, literal):
    with pytest.raises(HiggsError, match=r"^Higgs \w+: voice_2 is .*, not a voice\. Connect Higgs Load Voice"):
        run(node, **inputs, voices={"voice_1": VOICE, "voice_2": literal})


@pytest.mark.parametrize("literal", LITERALS)
@pytest.mark.parametrize(
    "node, inputs", [("speak.HiggsTTSSpeak", {"text": "Hi."}), ("voice_files.HiggsTTSSaveVoice", {"name": "a"})]
)
def test_a_linked_value_that_is_no_voice_is_refused(run, node, inputs, literal):
    with pytest.raises(HiggsError, match=r"^Higgs \w+( \w+)?: voice is .*, not a voice\. Connect Higgs Load Voice"):
        run(node, **inputs, voice=literal)


@pytest.mark.parametrize(
    "literal", [*LITERALS, {"waveform": [0.0], "sample_rate": 24000}, {**AUDIO, "sample_rate": "24000"}]
)
@pytest.mark.parametrize(
    "node, inputs, name",
    [
        ("voice.HiggsTTSVoice", {}, "audio"),
        ("transcribe.HiggsTTSTranscribe", {"whisper": "a"}, "audio"),
        ("subtitles.HiggsTTSSubtitles", {"srt": CUES}, "film"),
        ("subtitles.HiggsTTSSubtitles", {"srt": CUES}, "bed"),
    ],
)
def test_a_linked_value_that_is_no_sound_is_refused(run, node, inputs, name, literal):
    with pytest.raises(HiggsError, match=rf"^Higgs \w+: the {name} input is .*, not audio\. Connect Load Audio"):
        run(node, **inputs, **{name: literal})


@pytest.mark.parametrize("node, inputs", SPEAKING)
def test_an_unknown_input_is_refused(run, node, inputs):
    """ComfyUI passes on everything that is linked."""
    with pytest.raises(HiggsError, match=r"^Higgs \w+: there is no input 'voices\.voice_17'.* end at voice_16"):
        run(node, **inputs, **{"voices.voice_17": VOICE})


def test_an_unknown_clip_is_refused(run):
    with pytest.raises(HiggsError, match=r"^Higgs Voice: there is no input 'more_clips\.audio_9'.* end at audio_8"):
        run("voice.HiggsTTSVoice", audio=AUDIO, **{"more_clips.audio_9": AUDIO})


@pytest.mark.parametrize("literal", [*LITERALS, {"waveform": [0.0], "sample_rate": 24000}])
def test_a_further_clip_that_is_no_sound_is_refused(run, literal):
    with pytest.raises(HiggsError, match=r"^Higgs Voice: the audio_3 input is .*, not audio\. Connect Load Audio"):
        run("voice.HiggsTTSVoice", audio=AUDIO, more_clips={"audio_2": AUDIO, "audio_3": literal})


@pytest.mark.parametrize("literal", [None, 5, "nothing of that name"])
@pytest.mark.parametrize(
    "node, name",
    [
        ("load.HiggsTTSLoadModel", "model"),
        ("voice_files.HiggsTTSLoadVoice", "voice"),
        ("lora.HiggsTTSLoadLoRA", "name"),
        ("transcribe.HiggsTTSTranscribe", "whisper"),
        ("book.HiggsTTSBook", "book"),
    ],
)
def test_a_choice_outside_the_list_is_refused(run, node, name, literal):
    inputs = {"audio": AUDIO} if "Transcribe" in node else {}
    with pytest.raises(HiggsError, match=rf"^Higgs .*: there is no .*{literal}"):
        run(node, **inputs, **{name: literal})


@pytest.mark.parametrize(
    "node, name",
    [
        ("load.HiggsTTSLoadModel", "model"),
        ("voice_files.HiggsTTSLoadVoice", "voice"),
        ("voice_files.HiggsTTSSaveVoice", "name"),
        ("lora.HiggsTTSLoadLoRA", "name"),
        ("book.HiggsTTSBook", "book"),
        ("lines.HiggsTTSLines", "folder"),
        ("subtitles.HiggsTTSSubtitles", "srt"),
    ],
)
def test_an_error_does_not_repeat_a_very_long_name(run, node, name):
    given = {"HiggsTTSSaveVoice": {"voice": VOICE}, "HiggsTTSLines": {"lines": "Hi."}}.get(node.partition(".")[2], {})
    with pytest.raises(HiggsError) as refused:
        run(node, **given, **{name: "x" * 1_000_000 + ".srt"})
    assert len(str(refused.value)) < 1500


@pytest.mark.parametrize("device", [0, None, 1.5, {}])
def test_a_device_that_is_no_name_is_replaced_with_a_warning(load_module, device):
    (used,), warning = load_module("comfy.devices").resolve_devices(device)
    assert used == "cpu" and "This machine has no device" in warning
