"""Events for listening pages, and answers of the routes. tests/comfyui uses a real server and browser."""

from __future__ import annotations

import asyncio
import types
from urllib.parse import quote

import pytest
import torch


@pytest.fixture
def server(comfy, server_routes):
    """ComfyUI's server, which runs node 7 of the page "me"."""
    server = comfy["server"]
    server.PromptServer.instance.client_id, server.PromptServer.instance.last_node_id = "me", "7"
    server.PromptServer.instance.sockets = {"me": object(), "you": object()}
    return server


@pytest.fixture
def ask(server, server_routes):
    return server_routes


@pytest.fixture
def engine(make_engine):
    return make_engine()


@pytest.fixture
def speak(load_module, engine):
    """Run Higgs Speak, and wait until its sound is written."""
    patcher = load_module("comfy.patcher").make_patcher(engine)
    patcher.model.label, patcher.model.warnings = "higgs", ()
    node, live = load_module("speak").HiggsTTSSpeak, load_module("page.live_sound")

    def run(text="Hi", **settings):
        args = node.execute(patcher, text, **settings).args
        assert live.settle(60)
        return args

    return run


def listen(ask, client, on=True):
    assert ask("listen", {"client": client, "on": on}).status == 200


def test_events_go_only_to_the_page_that_queued_the_run(server, ask, speak):
    listen(ask, "me")
    listen(ask, "you")
    audio, *_ = speak()
    ((event, run, client),) = server.sent
    assert (event, client, run["node"], run["prompt"]) == ("higgs_tts.run", "me", "7", "a prompt")
    assert ask("runs", client="you").data == [] and ask("runs", client="me").data == [run]
    told = ask("runs/{run}", run=run["id"], version=-1).data
    assert told["state"] == "complete" and told["restarts"] == ["it fell silent"] and told["samples"] == 1920
    heard = ask("runs/{run}/samples", run=run["id"], revision=told["revision"], start=0, stop=5000).data
    wave = audio["waveform"][0, 0]
    assert heard == (wave * 32767).round().to(torch.int16).numpy().tobytes()


@pytest.mark.parametrize("kind", ["off", "flac"])
def test_a_page_downloads_the_result_or_the_saved_file(server, ask, speak, kind):
    listen(ask, "me")
    audio, *_ = speak(save_as=kind, filename_prefix="a ü", loudness="-23 LUFS")
    (run,) = ask("runs", client="me").data
    name = ask("runs/{run}", run=run["id"], version=-1).data["file"]
    assert name == {"off": "speech.wav", "flac": "a ü_00001_.flac"}[kind]
    sent = ask("runs/{run}/file", run=run["id"])
    assert sent.data[:4] == {"off": b"RIFF", "flac": b"fLaC"}[kind]
    assert sent.headers["Content-Disposition"] == f"attachment; filename*=UTF-8''{quote(name)}"
    if kind == "off":
        samples = (audio["waveform"][0, 0] * 32767).round().to(torch.int16).numpy().tobytes()
        assert sent.data[44:] == samples, "at its loudness"
    assert ask("runs/{run}/file", run="../etc/passwd").status == 404


def test_a_listening_page_gets_the_words_that_the_engine_aligned(server, ask, speak):
    listen(ask, "me")
    speak("Hello")
    told = ask("runs/{run}", run=server.sent[0][1]["id"], version=-1).data
    hello = {"word": "Hello", "start": 0.01, "end": 0.07, "speaker": "", "method": "attention", "sentence": 1}
    assert told["words"] == [hello]
    again = ask("runs/{run}", run=told["id"], version=-1, edition=told["edition"], words=1).data
    assert again["words"] == [] and again["known"] == 1


def test_a_run_carries_its_seed_its_retakes_and_how_its_text_begins(server, ask, speak):
    listen(ask, "me")
    speak(seed=41, retakes="1:2")
    speak("One\n two. " + "Three. " * 50, seed=2**53)
    first, second = ask("runs", client="me").data
    assert (first["seed"], first["said"], first["retakes"]) == (41, "Hi", "1:2") and second["retakes"] == ""
    assert second["seed"] is None, "a page would write another one"
    assert second["said"].startswith("One two. Three.") and len(second["said"]) <= 80


@pytest.mark.parametrize("text, digest", [("Grüße, 声音 😀 " * 9, 567214605), ("a\ud800", 718673308)])
def test_a_run_carries_the_digest_of_its_whole_text(server, ask, speak, text, digest):
    """As in tests/web/digest.test.mjs."""
    listen(ask, "me")
    speak(text)
    assert [run["digest"] for run in ask("runs", client="me").data] == [digest]


@pytest.mark.parametrize(
    "sent, told",
    [
        ({"extra_pnginfo": {"workflow": {"id": "a workflow", "nodes": []}}}, "a workflow"),
        ({"extra_pnginfo": {"workflow": {"nodes": []}}}, None),
        ({"extra_pnginfo": {"workflow": {"id": 5}}}, None),
        ({"extra_pnginfo": ["what a script may send"]}, None),
        ({"client_id": "me"}, None),
    ],
)
def test_a_run_carries_its_workflow(server, ask, speak, sent, told):
    other = {"extra_pnginfo": {"workflow": {"id": "another"}}}
    server.queued[:] = [(0, "another prompt", {}, other, [], {}), (1, "a prompt", {}, sent, [], {})]
    listen(ask, "me")
    speak()
    assert [run["workflow"] for run in ask("runs", client="me").data] == [told]
    assert server.sent[0][1]["workflow"] == told


@pytest.mark.parametrize("why", ["nobody asked", "switched off", "no browser", "another page", "no server"])
def test_runs_without_a_listening_page_send_and_keep_nothing(server, ask, engine, speak, tmp_path, monkeypatch, why):
    if why == "another page":
        listen(ask, "you")
    elif why != "nobody asked":
        listen(ask, "me")
    if why == "switched off":
        listen(ask, "me", on=False)
    elif why == "no browser":
        server.PromptServer.instance.client_id = None
    elif why == "no server":
        monkeypatch.delattr(server.PromptServer, "instance")
    audio, *_ = speak()
    assert audio["waveform"].shape == (1, 1, 1920)
    assert server.sent == [] and not list((tmp_path / "temp").glob("*"))
    assert ("words" in engine.calls) == (why == "no server"), "a script gets all outputs"


def test_speech_is_the_same_with_and_without_a_listener(ask, speak):
    alone = speak()
    listen(ask, "me")
    heard = speak()
    assert torch.equal(alone[0]["waveform"], heard[0]["waveform"]) and alone[1:] == heard[1:]


def test_an_unwritable_temp_folder_is_reported_and_speech_goes_on(server, ask, speak, tmp_path):
    listen(ask, "me")
    (tmp_path / "temp").write_text("a file")
    audio, info, *_ = speak()
    assert audio["waveform"].shape == (1, 1, 1920)
    told = ask("runs/{run}", run=server.sent[0][1]["id"], version=-1).data
    assert (told["state"], told["samples"]) == ("stopped", 0)
    assert "could not be written (" in told["problem"] and f"Warning: {told['problem']}" in info


def test_a_full_temp_folder_is_reported(server, ask, speak, load_module, monkeypatch):
    def full(data):
        raise OSError(28, "No space left on device")

    listen(ask, "me")
    monkeypatch.setattr(load_module("page.live_sound"), "pcm_bytes", full)
    _, info, *_ = speak()
    told = ask("runs/{run}", run=server.sent[0][1]["id"], version=-1).data
    assert "(No space left on device)" in told["problem"] and f"Warning: {told['problem']}" in info


def test_a_cancelled_run_ends_its_sound(server, ask, speak, comfy, interrupted, load_module):
    listen(ask, "me")
    events = load_module("page.events")
    with pytest.raises(interrupted), events.heard() as sound:
        sound.hear(torch.zeros(960))
        raise interrupted
    (_, run, _) = server.sent[0]
    speak()  # writes what is left
    assert ask("runs/{run}", run=run["id"], version=-1).data["state"] == "stopped"


def test_the_oldest_sounds_are_dropped_first(server, ask, speak, load_module, monkeypatch, tmp_path):
    monkeypatch.setattr(load_module("page.events"), "KEPT_RUNS", 3)
    listen(ask, "me")
    for _ in range(5):
        speak()
    kept = [run["id"] for run in ask("runs", client="me").data]
    assert kept == [run["id"] for _, run, _ in server.sent[2:]]
    assert len(list((tmp_path / "temp").glob("*.pcm"))) == len(list((tmp_path / "temp").glob("*.wav"))) == 3
    assert ask("runs/{run}", run=server.sent[0][1]["id"]).status == 404
    monkeypatch.setattr(load_module("page.events"), "KEPT_BYTES", 4 * 1920 + 44)
    speak()
    assert len(list((tmp_path / "temp").glob("*.pcm"))) <= 2 and len(list((tmp_path / "temp").glob("*.wav"))) <= 2


def test_closed_pages_are_forgotten(server, ask, speak):
    listen(ask, "me")
    del server.PromptServer.instance.sockets["me"]
    listen(ask, "you")
    speak()
    assert server.sent == []


def test_an_open_page_adopts_its_workflow_s_runs_from_a_closed_page(server, ask, speak):
    instance = server.PromptServer.instance
    server.queued[:] = [(0, "a prompt", {}, {"extra_pnginfo": {"workflow": {"id": "a workflow"}}}, [], {})]
    listen(ask, "me")
    speak()
    assert ask("runs", client="you", workflow="a workflow").data == [], "its own page is there"
    del instance.sockets["me"]
    listen(ask, "you")
    assert ask("runs", client="you", workflow="another").data == ask("runs", client="you").data == []
    taken = ask("runs", client="you", workflow="a workflow").data
    assert [run["workflow"] for run in taken] == ["a workflow"] and ask("runs", client="me").data == []
    speak("What was queued by the page that is closed.")
    (_, run, client) = server.sent[-1]
    assert client == "you" and ask("runs", client="you").data == [*taken, run]
    instance.sockets["me"] = object()
    listen(ask, "me")
    speak("It is there again.")
    assert server.sent[-1][2] == "me"


@pytest.mark.parametrize(
    "body",
    [
        *(None, [], "on", {"client": "me"}, {"client": 5, "on": True}),
        *(b"", b"no JSON", b"{", b"\xff\xfe\xff", b'{"client": ' + b"[" * 20_000, b'{"on": ' + b"9" * 5000 + b"}"),
        b'{"client": "' + b"x" * (4 << 20) + b'"}',
    ],
)
@pytest.mark.parametrize("path", ["listen", "text", "lines"])
def test_a_bad_request_gets_a_clear_error(ask, path, body):
    answer = ask(path, body)
    assert answer.status == 400 and answer.data["error"].endswith(".") and len(answer.data["error"]) < 200


def test_a_wrongly_encoded_body_gets_a_clear_error(ask, comfy):
    answer = ask(
        "text", comfy["aiohttp"].web.RequestPayloadError("400, message:\n  Can not decode content-encoding: br")
    )
    assert answer.status == 400 and "Can not decode content-encoding: br" in answer.data["error"]


def test_bad_numbers_and_lost_sounds_get_clear_errors(server, ask, speak):
    listen(ask, "me")
    speak()
    run = server.sent[0][1]["id"]
    for asked in ({"version": "x"}, {"revision": "1.5"}, {"outline": "9" * 20}, {"words": "--"}):
        answer = ask("runs/{run}", run=run, **asked)
        assert answer.status == 400 and "must be a whole number" in answer.data["error"], asked
    assert ask("runs/{run}/samples", run=run, start="x").status == 400
    assert ask("runs/{run}/samples", run=run, revision=7, start=0, stop=10).status == 204
    assert ask("runs/{run}/samples", run="../etc/passwd").status == 404
    assert ask("runs/{run}/samples", run=run, revision=1, start=-5, stop=4).status == 200
    far = ask("runs/{run}/samples", run=run, revision=1, start=999_999_999_999_999, stop=999_999_999_999_999)
    assert (far.status, far.data) == (200, b"")


def test_a_request_for_news_waits_until_there_are_some(server, ask, load_module):
    """The answer comes with the next sound, or when the time is over."""
    listen(ask, "me")
    events, live = load_module("page.events"), load_module("page.live_sound")

    async def follow():
        server.PromptServer.instance.loop = types.SimpleNamespace(
            call_soon_threadsafe=asyncio.get_running_loop().call_soon_threadsafe, is_running=lambda: True
        )
        with events.heard() as sound:
            run = events.runs_of("me")[0]
            waits = asyncio.ensure_future(run.told(0, 20, 0, 0))
            await asyncio.sleep(0.05)
            assert not waits.done()
            sound.hear(torch.ones(960))
            first = await waits
            late = await run.told(first["version"], 0.01, 0, 0)
            return first, late

    first, late = asyncio.run(follow())
    assert first["samples"] == 960 and first["version"] == 1 and late == first
    assert live.FRAME == 960
