"""Ownership of players, and which of several players on a page is heard."""

from __future__ import annotations

import json
import socket
import time
import uuid

import pytest
import torch
from higgs_tts.engine import Voice
from higgs_tts.tests.templates import TITLES

from .server import TODAY
from .test_browser import SET, open_browser  # noqa: F401 - a fixture
from .test_live import (  # noqa: F401 - fixtures
    LOAD,
    LONG,
    SEEDS,
    WATCH,
    Listener,
    assert_same,
    classic,
    open_listener,
)

OPEN = "([saved, name]) => app.loadGraphData(saved, true, true, name)"
# As ComfyUI does to undo a change: all nodes are made anew.
UNDO = "saved => app.loadGraphData(saved, false, false, app.extensionManager.workflow.activeWorkflow)"
IS_OPEN = "id => window.app?.graph?.id === id && app.graph._nodes.length > 0"
PLAYERS = "() => [...document.querySelectorAll('.higgs-player')].map((player) => player.dataset.mode)"
SHOWS = "mode => document.querySelector('.higgs-player')?.dataset.mode === mode"
PREVIEW = "() => [...document.querySelectorAll('audio')].find(({ src }) => src)"
KEEP_SOUNDS = """window.sounds = []
window.Audio = class extends Audio { constructor(address) { super(address); sounds.push(this) } }"""
LAST_SOUND = "() => ({ paused: sounds.at(-1).paused, volume: sounds.at(-1).volume })"
# What was played to its end by buffers, at its times: a page without AudioWorklet cannot record what it plays.
KEEP_BUFFERS = """(() => {
    const start = AudioBufferSourceNode.prototype.start
    let parts = []
    AudioBufferSourceNode.prototype.start = function (when) {
        const part = { at: Math.round(when * this.context.sampleRate), wav: this.buffer.getChannelData(0).slice() }
        this.addEventListener("ended", () => parts.push(part))
        return start.apply(this, arguments)
    }
    window.heard = { reset() { parts = [] } }
    window.heardSamples = () => {
        const ordered = parts.toSorted((one, other) => one.at - other.at)
        const samples = []
        for (const { at, wav } of ordered) {
            while (samples.length < at - ordered[0].at) samples.push(0)
            for (const sample of wav) samples.push(Math.round(sample * 32767))
        }
        return samples
    }
})()"""


def read(template):
    """Read a template as a separate workflow."""
    saved = json.loads((TODAY / f"{TITLES[template]}.json").read_text(encoding="utf-8"))
    return {**saved, "id": str(uuid.uuid4())}


def until_idle(listener):
    """Wait until nothing runs or is queued."""
    deadline = time.monotonic() + 240
    while listener.comfy.get("/prompt")["exec_info"]["queue_remaining"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    listener.page.wait_for_timeout(300)  # the page's last messages


def is_silent(listener):
    """True if the speakers are silent."""
    listener.page.wait_for_timeout(200)
    before = len(listener.heard())
    listener.page.wait_for_timeout(300)
    return len(listener.heard()) == before


def test_a_player_stays_with_the_workflow_that_was_run(classic):  # noqa: F811
    """The other workflow has nodes of the same numbers."""
    page, first, second = classic.page, read("speak"), read("speak")
    page.evaluate(OPEN, [first, "the first"])
    page.evaluate(SET, ["HiggsTTSSpeak", "seed", next(SEEDS)])
    page.evaluate(SET, ["HiggsTTSSpeak", "text", LONG])
    told = len(page.evaluate("window.runs ?? []"))
    classic.start()
    classic.until("playing")
    page.evaluate(SET, ["HiggsTTSSpeak", "text", "It begins to speak while the other one is open."])
    page.get_by_test_id("queue-button").click()
    page.wait_for_timeout(500)
    page.evaluate(OPEN, [second, "the second"])
    assert is_silent(classic) and page.evaluate(PLAYERS) == []
    page.wait_for_function("told => runs.length === told + 2", arg=told, timeout=240_000)
    until_idle(classic)
    assert is_silent(classic) and page.evaluate(PLAYERS) == []
    page.locator(".workflow-tab").filter(has_text="the first").click()
    page.wait_for_function(SHOWS, arg="paused")
    page.locator(".higgs-open-takes").click()
    rows = page.locator(".higgs-take")
    assert rows.count() == 2 and "It begins to speak" in rows.first.inner_text()
    page.keyboard.press("Escape")
    page.locator(".higgs-play").click()
    classic.until("ended")
    page.locator(".workflow-tab").filter(has_text="the second").click()
    page.wait_for_function(IS_OPEN, arg=second["id"])
    page.wait_for_timeout(1000)  # until the page has noted which one is open
    page.reload()
    page.wait_for_function(IS_OPEN, arg=second["id"])
    page.get_by_test_id("side-toolbar").wait_for()
    page.wait_for_timeout(1000)
    assert page.evaluate(PLAYERS) == []
    page.evaluate(LOAD, first)
    page.wait_for_function(SHOWS, arg="paused")
    page.evaluate(WATCH)
    assert classic.browser.faults == []


def test_a_prompt_without_a_workflow_has_its_player_where_its_node_is(classic):  # noqa: F811
    classic.open(text="Sent by a script in the page.")
    classic.page.evaluate(WATCH)
    classic.page.mouse.click(800, 950)
    classic.page.evaluate("""async () => {
        const { output } = await app.graphToPrompt()
        const body = JSON.stringify({ client_id: app.api.clientId, prompt: output })
        await app.api.fetchApi("/prompt", { method: "POST", body, headers: { "Content-Type": "application/json" } })
    }""")
    classic.until_done()
    classic.until("ended")
    assert_same(classic)
    assert classic.page.evaluate("runs.at(-1).workflow") is None


def test_sound_stops_with_its_node_and_resumes_after_undo(classic):  # noqa: F811
    page = classic.page
    page.evaluate(LOAD, read("speak"))
    page.evaluate(SET, ["HiggsTTSSpeak", "text", LONG])
    classic.start()
    classic.until("playing")
    page.evaluate(UNDO, page.evaluate("() => app.graph.serialize()"))
    page.wait_for_timeout(500)
    assert page.evaluate(PLAYERS) == ["playing"] and not is_silent(classic)
    saved = page.evaluate("() => app.graph.serialize()")
    page.evaluate("() => app.graph.remove(app.graph._nodes.find((node) => node.type === 'HiggsTTSSpeak'))")
    assert is_silent(classic)
    page.evaluate(UNDO, saved)
    page.wait_for_function(SHOWS, arg="paused")
    until_idle(classic)
    page.locator(".higgs-play").click()
    classic.until("playing")
    page.locator(".higgs-play").click()
    classic.until("paused")
    assert classic.browser.faults == []


def test_running_one_node_keeps_another_s_take_playing(classic):  # noqa: F811
    page = classic.page
    page.evaluate(LOAD, read("speak"))
    page.evaluate(SET, ["HiggsTTSSpeak", "control_after_generate", "fixed"])
    for text in (LONG[:150], "A later take of the same node."):
        page.evaluate(SET, ["HiggsTTSSpeak", "text", text])
        classic.start()
        classic.until_done()
        classic.until("ended")
    page.locator(".higgs-open-takes").click()
    page.locator(".higgs-take").nth(1).locator(".higgs-hear").click()
    page.keyboard.press("Escape")
    classic.until("playing")
    page.evaluate("""() => {
        const speak = app.graph._nodes.find((node) => node.type === "HiggsTTSSpeak")
        const other = LiteGraph.createNode("HiggsTTSSpeak")
        other.pos = [speak.pos[0], speak.pos[1] + 700]
        app.graph.add(other)
        speak.getInputNode(0).connect(0, other, 0)
        const dump = LiteGraph.createNode("HiggsProbeDump")
        app.graph.add(dump)
        other.connect(0, dump, 0)
    }""")
    classic.start()
    page.wait_for_function("() => document.querySelectorAll('.higgs-player')[1]?.dataset.mode", timeout=240_000)
    assert page.evaluate(PLAYERS) == ["playing", "waiting"]
    page.wait_for_function("() => [...document.querySelectorAll('.higgs-player')].at(-1).dataset.mode === 'ended'")
    assert page.evaluate(PLAYERS) == ["ended", "ended"] and classic.browser.faults == []


def test_speech_plays_to_its_end_if_a_later_node_fails(classic):  # noqa: F811
    page = classic.page
    page.evaluate(LOAD, read("speak"))
    for name, value in (("text", LONG[:150]), ("seed", next(SEEDS)), ("retries", 0), ("loudness", "as is")):
        page.evaluate(SET, ["HiggsTTSSpeak", name, value])
    page.evaluate("""() => {
        const fail = LiteGraph.createNode("HiggsProbeFail")
        fail.pos = [1000, 900]
        app.graph.add(fail)
        app.graph._nodes.find((node) => node.type === "HiggsTTSSpeak").connect(0, fail, 0)
        window.failed = false
        app.api.addEventListener("execution_error", () => { window.failed = true }, { once: true })
    }""")
    classic.start()
    page.wait_for_function("() => window.failed", timeout=240_000)
    classic.until("ended")
    assert_same(classic)
    page.keyboard.press("Escape")  # ComfyUI's dialog


@pytest.fixture(scope="module")
def voices(open_listener):  # noqa: F811
    """A page with nodes that load voices and one that speaks."""
    listener = open_listener(KEEP_SOUNDS, Comfy_VueNodes_Enabled=False)
    listener.page.evaluate(LOAD, read("dialogue"))
    listener.page.locator(".higgs-voice").first.get_by_text(" s · ").wait_for()
    return listener


def test_nodes_of_a_page_request_the_voices_once(voices):
    asked = []
    voices.page.on("request", lambda request: "/higgs_tts/voices" in request.url and asked.append(request.url))
    voices.page.evaluate("() => app.refreshComboInNodes()")
    voices.page.wait_for_timeout(1000)
    assert voices.page.locator(".higgs-voice").count() > 1 and len(asked) == 1


def test_a_failed_voice_list_is_reported(voices):
    page = voices.page
    page.route("**/higgs_tts/voices*", lambda route: route.abort())
    page.locator(".higgs-voice").first.get_by_title("All voices").click()
    page.get_by_text("ComfyUI is not responding").wait_for()
    page.unroute("**/higgs_tts/voices*")
    page.evaluate("() => app.refreshComboInNodes()")
    page.locator(".higgs-voice").first.get_by_text(" s · ").wait_for()
    assert voices.browser.faults == []


def test_a_voice_and_a_player_take_turns_at_the_same_volume(voices):
    page = voices.page
    hear, play = page.locator(".higgs-voice .higgs-hear").first, page.locator(".higgs-play")
    voices.start()
    voices.until("playing")
    hear.click()
    voices.until("paused")
    assert hear.inner_text() == "■" and page.evaluate(LAST_SOUND) == {"paused": False, "volume": 1}
    page.locator(".higgs-volume").fill("0.5")
    assert page.evaluate(LAST_SOUND) == {"paused": False, "volume": 0.5}
    page.locator(".higgs-volume").fill("1")
    until_idle(voices)
    play.click()
    voices.until("playing")
    assert hear.inner_text() == "▶" and page.evaluate(LAST_SOUND)["paused"]
    play.click()
    voices.until("paused")
    hear.click()
    assert page.evaluate(LAST_SOUND) == {"paused": False, "volume": 1}
    page.evaluate(
        "() => app.graph._nodes.filter(({ type }) => type === 'HiggsTTSLoadVoice')"
        ".forEach((node) => app.graph.remove(node))"
    )
    assert page.evaluate(LAST_SOUND)["paused"] and voices.browser.faults == []


def test_a_voice_of_another_model_is_told_again_as_the_model_changes(voices):
    page, path = voices.page, voices.comfy.base / "models" / "voices" / "other.safetensors"
    Voice(torch.zeros(50, 8, dtype=torch.int64), "Two.", "other", "1+1").save(path)
    page.evaluate(LOAD, read("dialogue"))
    page.mouse.move(5, 500)
    told = page.locator(".higgs-voice").first
    page.evaluate("""() => {
        const combo = app.graph._nodes.find(({ type }) => type === "HiggsTTSLoadVoice").widgets[0]
        combo.value = "other.safetensors"
        combo.callback?.(combo.value)
    }""")
    told.get_by_text("different model").wait_for()
    page.evaluate(SET, ["HiggsTTSLoadModel", "model", "download: Higgs TTS 3 (4B)"])
    told.hover()
    told.get_by_text(" s · Two.").wait_for()
    page.evaluate("""() => {
        const node = app.graph._nodes.find(({ type }) => type === "HiggsTTSLoadVoice")
        node.disconnectInput(node.inputs.findIndex(({ name }) => name === "model"))
    }""")
    told.get_by_text("different model").wait_for()
    path.unlink()
    assert voices.browser.faults == []


def test_a_player_and_preview_audio_take_turns(classic):  # noqa: F811
    page = classic.page
    page.evaluate(LOAD, read("speak"))
    page.evaluate(SET, ["HiggsTTSSpeak", "text", LONG[:150]])
    page.evaluate(SET, ["HiggsTTSSpeak", "seed", next(SEEDS)])
    classic.start()
    classic.until_done()
    page.wait_for_function(f"() => ({PREVIEW})()?.duration > 1")
    page.evaluate(f"async () => {{ const preview = ({PREVIEW})(); preview.loop = true; await preview.play() }}")
    classic.until("paused", "ended")
    page.locator(".higgs-play").click()
    classic.until("playing")
    assert page.evaluate(f"() => ({PREVIEW})().paused")
    page.evaluate(f"() => ({PREVIEW})().play()")
    classic.until("paused")
    assert is_silent(classic)
    page.evaluate(SET, ["HiggsTTSSpeak", "seed", next(SEEDS)])
    classic.start()
    classic.until("waiting")
    classic.until("playing")  # since the run has given Preview Audio another file
    assert page.evaluate(f"() => ({PREVIEW})().paused") and classic.browser.faults == []
    page.locator(".higgs-play").click()
    classic.until("paused")


def address():
    """Return this machine's own network address. Sends nothing to find it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.200", 9))
            return probe.getsockname()[0]
    except OSError:
        return ""


def test_the_player_works_over_plain_http_on_a_lan(open_browser, start_comfy):  # noqa: F811
    """Browsers offer no AudioWorklet there, and withhold much else."""
    host = address()
    if not host or host.startswith("127."):
        pytest.skip("this machine has no address but its own loopback")
    comfy = start_comfy("--listen", "0.0.0.0", page=True, bare=True)
    listener = Listener(open_browser(comfy, KEEP_BUFFERS, host=host, Comfy_VueNodes_Enabled=False))
    assert listener.page.evaluate("[isSecureContext, 'audioWorklet' in BaseAudioContext.prototype]") == [False, False]
    listener.open()
    listener.start()
    listener.until_done()
    listener.until("ended")
    assert_same(listener)
    assert listener.browser.faults == []
    listener.page.close()
