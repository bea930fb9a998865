"""Errors appear on the node, in a sentence that names it, and ComfyUI keeps working."""

from __future__ import annotations

import json
import os
import random
import urllib.error
import urllib.request

import numpy as np
import pytest

from .server import Comfy, serving


@pytest.fixture
def still_works(comfy, workflow):
    """Run the plain workflow after the test, to check that the worker is alive and the engine usable."""
    yield
    assert not comfy.run(workflow("speak", HiggsTTSSpeak={"max_frames": 25})).error


def refused(outcome, *parts):
    assert all(part in outcome.error for part in parts), outcome.error


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty_text_is_refused(comfy, workflow, still_works, text):
    refused(comfy.run(workflow("speak", HiggsTTSSpeak={"text": text})), "Higgs Speak: ", "empty")


@pytest.mark.parametrize(
    "node, inputs, part",
    [
        ("EmptyAudio", {"duration": 3.0, "sample_rate": 44100, "channels": 2}, "silent"),
        ("EmptyAudio", {"duration": 0.5, "sample_rate": 44100, "channels": 2}, "0.50 s"),
        ("EmptyAudio", {"duration": 31.0, "sample_rate": 16000, "channels": 1}, "31.0 s"),
        ("HiggsProbeBadAudio", {"kind": "nan"}, "NaN"),
        ("HiggsProbeBadAudio", {"kind": "none"}, "empty"),
        ("HiggsProbeBadAudio", {"kind": "two clips"}, "one clip"),
    ],
)
def test_bad_reference_clips_are_refused(comfy, workflow, still_works, node, inputs, part):
    prompt = workflow("clone_voice")
    prompt["2"] = {"class_type": node, "inputs": inputs}
    refused(comfy.run(prompt), "Higgs Voice: ", part)


def test_a_missing_model_is_refused(comfy, workflow, still_works):
    outcome = comfy.run(workflow("speak", HiggsTTSLoadModel={"model": "nowhere"}))
    refused(outcome, "Higgs Load Model", "'nowhere'", "higgs-tts-3-4b", "download: ")


def test_folders_without_a_whole_checkpoint_are_refused(comfy, workflow, still_works):
    root = comfy.base / "models" / "higgs_tts"
    for name, config in (("whisper", {"model_type": "whisper"}), ("half", {"model_type": "higgs_multimodal_qwen3"})):
        (root / name).mkdir()
        (root / name / "config.json").write_text(json.dumps(config))
    refused(comfy.run(workflow("speak", HiggsTTSLoadModel={"model": "whisper"})), "'whisper'")
    refused(comfy.run(workflow("speak", HiggsTTSLoadModel={"model": "half"})), "half", "incomplete", "tokenizer.json")


def test_a_damaged_checkpoint_is_refused(comfy, workflow, still_works):
    good, bad = (comfy.base / "models" / "higgs_tts" / name for name in ("higgs-tts-3-4b", "damaged"))
    bad.mkdir()
    for file in good.iterdir():
        data = file.read_bytes()
        (bad / file.name).write_bytes(data[: len(data) // 2] if file.suffix == ".safetensors" else data)
    refused(comfy.run(workflow("speak", HiggsTTSLoadModel={"model": "damaged"})), "Higgs Load Model: ", "safetensors")


def test_a_library_clip_without_a_model_is_refused(comfy, still_works):
    prompt = {
        "1": {"class_type": "HiggsTTSLoadVoice", "inputs": {"voice": "anna.wav"}},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 1]}},
    }
    refused(comfy.run(prompt), "Higgs Load Voice: anna.wav", "Connect Higgs Load Model")


def test_a_name_that_leads_out_of_the_voice_folder_is_refused(comfy, workflow, still_works):
    prompt = workflow("clone_voice")
    prompt["20"] = {"class_type": "HiggsTTSSaveVoice", "inputs": {"voice": ["3", 0], "name": "../../evil"}}
    refused(comfy.run({node: prompt[node] for node in ("1", "2", "3", "20")}), "Higgs Save Voice: ", "../../evil")


@pytest.fixture
def stop_speech(workflow):
    """stop_speech(comfy) -> the outcome of a run stopped during speech."""

    def run(comfy):
        stopped = []

        def stop(message):
            if message["type"] == "progress" and message["data"]["value"] > 5 and not stopped:
                stopped.append(message["data"])
                comfy.post("/interrupt", {})

        outcome = comfy.run(workflow("speak", HiggsTTSSpeak={"max_frames": 3000}), stop)
        assert stopped and outcome.data("execution_interrupted") and not outcome.data("execution_success")
        return outcome

    return run


def test_stop_ends_speech_and_the_next_run_works(comfy, workflow, stop_speech):
    expected = comfy.run(workflow("speak", HiggsTTSSpeak={"chunk_seconds": 41.0})).audio()[0]
    assert max(data["value"] for data in stop_speech(comfy).data("progress")) < 3000
    again = comfy.run(workflow("speak", HiggsTTSSpeak={"chunk_seconds": 42.0})).audio()[0]
    np.testing.assert_array_equal(again, expected)


def test_cancelling_and_changing_models_leaves_nothing_behind(make_comfy, workflow, stop_speech):
    """Also while the exception of the cancel is kept, with the frames it passed."""
    comfy = make_comfy("--verbose", "DEBUG")  # what is still referred to when its pool closes is told at this level
    comfy.get("/higgs_probe/keep")
    stop_speech(comfy)
    other = workflow("speak", HiggsTTSLoadModel={"model": "higgs/v2"})
    other["30"] = {"class_type": "HiggsProbePressure", "inputs": {"audio": ["2", 0], "wanted": "all"}}
    assert not comfy.run(other).error
    comfy.until(lambda state: state["open"] == 0)
    told = comfy.log.read_text(errors="replace")
    assert "probe: a cancel is kept" in told, "debug messages are not told here"
    assert "still referenced" not in told and "Higgs TTS:" not in told, told[-3000:]


@pytest.mark.parametrize("path", ["text", "lines", "listen"])
@pytest.mark.parametrize(
    "body, headers",
    [
        (b"[" * 20_000, {}),
        (b'{"kind": "text", "text": "x"}', {"Content-Encoding": "gzip"}),
        (b'{"kind": "text", "settings": {"takes": Infinity}}', {}),
        (b'{"kind": "text", "settings": {"turn_gap": ' + b"9" * 400 + b"}}", {}),
        (b"x" * (5 << 20), {}),
        (b"\xff\xfe", {"Content-Type": "application/json; charset=hex"}),
    ],
)
def test_routes_answer_any_request_with_a_clear_error(comfy, path, body, headers):
    address = f"http://127.0.0.1:{comfy.port}/higgs_tts/{path}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=60)
    assert refused.value.code == 400 and json.loads(refused.value.read())["error"].endswith(".")


def test_an_unknown_charset_is_read_as_utf_8(comfy):
    request = urllib.request.Request(
        f"http://127.0.0.1:{comfy.port}/higgs_tts/text",
        '{"kind": "text", "text": "Grüße."}'.encode(),
        {"Content-Type": "application/json; charset=foo"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.loads(answer.read())["seconds"] > 0


def test_every_input_that_must_be_refused_is_told_in_other_languages(tmp_path):
    if "COMFYUI_PATH" not in os.environ:
        pytest.skip("COMFYUI_PATH is not set: no ComfyUI to test in")
    pytest.importorskip("aiohttp", reason="aiohttp is not installed beside pytest: pip install aiohttp")
    from higgs_tts.tests.faults.user_prompts import REFUSED, Prompts, check_refused, furnish

    furnish(tmp_path / "base")
    with serving(tmp_path / "base" / "tiny" / "v3") as address:
        comfy = Comfy(tmp_path / "base", ("--cpu",))
        try:
            prompts = Prompts(random.Random(1), comfy.get("/object_info"), True)
            for _ in REFUSED:
                _, prompt, parts = prompts.refused(address)
                check_refused(comfy.run(prompt), parts)
        finally:
            comfy.stop()
