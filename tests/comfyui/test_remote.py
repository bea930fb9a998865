"""Higgs TTS Server in a real ComfyUI: speaks through our server, loads nothing, and stops on request."""

from __future__ import annotations

import numpy as np
import pytest

from .server import serving

FRAMES, RATE = 40, 24_000


@pytest.fixture(scope="module")
def address(tiny):
    """host:port of our own server with the tiny checkpoint."""
    with serving(tiny / "v3") as place:
        yield place


@pytest.fixture
def prompt(template, address):
    """prompt(**inputs of Higgs Speak) -> the template, cut short."""

    def made(**given):
        speak = {"max_frames": FRAMES, "retries": 0, **given}
        return template("server", HiggsTTSServer={"addresses": address}, HiggsTTSSpeak=speak)

    return made


def test_a_server_speaks_and_no_model_is_loaded(fresh, prompt, address):
    outcome = fresh.run(prompt())
    told, servers = outcome.text_of("4"), outcome.text_of("5")
    wave, rate = outcome.audio()
    assert rate == RATE and wave.shape == (FRAMES * 960, 1) and np.abs(wave).max() > 0.01
    assert servers == f"Higgs TTS at {address}: v3"
    assert f"Model: v3 on Higgs TTS at {address}" in told and f"Backend: Higgs TTS at {address} (1 chunk). " in told
    assert fresh.get("/higgs_probe") == {"open": 0, "loaded": [], "whole": [], "missing": []}
    fresh.post("/free", {"unload_models": True, "free_memory": True})
    again = fresh.run(prompt())
    assert np.array_equal(again.audio()[0], wave), "the same after Unload Models"


def test_a_server_speaks_as_the_local_model_does(comfy, fresh, prompt, template):
    """The local model is the tiny checkpoint too."""
    here = template("speak", HiggsTTSSpeak={"max_frames": FRAMES, "retries": 0})
    here["1"]["inputs"]["model"] = "higgs-tts-3-4b"
    here["2"]["inputs"]["text"] = prompt()["2"]["inputs"]["text"]
    ours, theirs = comfy.run(here).audio()[0], fresh.run(prompt()).audio()[0]
    assert np.abs(ours - theirs).max() < 1e-3


def test_a_server_clones_a_clip(fresh, prompt, address):
    asked = prompt(text="A voice of the pack's, by a server.")
    given = {"voice": "built-in/amber.flac", "model": ["1", 0]}
    asked["8"] = {"class_type": "HiggsTTSLoadVoice", "inputs": given}
    asked["2"]["inputs"]["voice"] = ["8", 0]
    plain = fresh.run(prompt(text="A voice of the pack's, by a server.")).audio()[0]
    assert not np.array_equal(fresh.run(asked).audio()[0], plain)


def test_cancel_stops_the_server_too(fresh, prompt, address):
    asked = prompt(text="This sentence goes on. " * 40, max_frames=1500, seed=99)
    stopped = []

    def stop(event):
        if event["type"] == "progress" and event["data"].get("node") == "2" and not stopped:
            stopped.append(fresh.post("/interrupt", {}))

    outcome = fresh.run(asked, on_event=stop)
    assert stopped and [event["type"] for event in outcome.events][-1] == "execution_interrupted"
    assert fresh.run(prompt(seed=100)).audio()[0].size, "both go on"


def test_a_stopped_server_is_an_error_on_the_node(fresh, prompt):
    asked = prompt()
    asked["1"]["inputs"]["addresses"] = "127.0.0.1:9"
    assert "Higgs TTS Server: The server cannot be used: 127.0.0.1:9 refused the connection" in fresh.run(asked).error
    asked["1"]["inputs"] |= {"addresses": "127.0.0.1:9", "key_variable": "bai-secret"}
    refused = fresh.run(asked).error
    assert "environment variable" in refused
    asked["1"]["inputs"] |= {"addresses": "ftp://box", "key_variable": "HIGGS_TTS_API_KEY"}
    assert fresh.run(asked).error.count("is not the address of a server") == 1
