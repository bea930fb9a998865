"""A voice cloned in Higgs Voice alone: recorded, dropped, cut, heard, written down and saved, in a real browser."""

from __future__ import annotations

import base64
import json
import time

import pytest
import soundfile
from higgs_tts.tests.whisper_files import write_whisper

from .server import SAVED, WAIT
from .test_browser import VOICES, open_browser  # noqa: F401 - a fixture

SETUP = """() => {
    app.graph.clear()
    const add = (type, x) => {
        const node = LiteGraph.createNode(type)
        node.pos = [x, 60]
        node.id = window.lastId = (window.lastId ?? 100) + 1 // 1.41's Nodes 2.0 shows an id's first element for ever
        app.graph.add(node)
        return node
    }
    const [model, voice, shown] = [add("HiggsTTSLoadModel", 40), add("HiggsTTSVoice", 460), add("PreviewAny", 960)]
    model.connect(0, voice, 0)
    voice.connect(1, shown, 0)
    voice.setSize([440, voice.size[1]])
    app.canvas.ds.reset()
    app.canvas.setDirty(true, true)
}"""
VALUES = """() => Object.fromEntries(app.graph._nodes.find((node) => node.type === "HiggsTTSVoice").widgets
    .filter(({ name }) => ["clip", "start", "length", "transcript"].includes(name))
    .map(({ name, value }) => [name, value]))"""
IS = """wanted => { const now = (%s)(); return Object.entries(wanted).every(([name, value]) => now[name] === value) }"""
DROP = """([name, data]) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))
    const files = new DataTransfer()
    files.items.add(new File([bytes], name, { type: "audio/flac" }))
    const at = document.querySelector(".higgs-clip")
    for (const type of ["dragover", "drop"]) {
        at.dispatchEvent(new DragEvent(type, { dataTransfer: files, bubbles: true, cancelable: true }))
    }
}"""
CHECKS = """() => [...document.querySelectorAll(".higgs-check")].map(({ textContent }) => textContent)"""
TYPE = """([name, value]) => {
    const { widgets } = app.graph._nodes.find(({ type }) => type === "HiggsTTSVoice")
    const widget = widgets.find((one) => one.name === name)
    widget.value = value
    widget.callback?.(value)
}"""


@pytest.fixture(scope="module")
def chromium_flags(tmp_path_factory):
    """Flags of a browser whose microphone hears a clip of 6.7 s again and again."""
    wav, rate = soundfile.read(VOICES / "oliver.flac", dtype="int16")
    path = tmp_path_factory.mktemp("microphone") / "voice.wav"
    soundfile.write(path, wav, rate)
    fake = (
        "use-fake-device-for-media-stream",
        "use-fake-ui-for-media-stream",
        f"use-file-for-fake-audio-capture={path}",
    )
    return [f"--{flag}" for flag in fake]


@pytest.fixture(scope="module")
def canvas(open_browser, start_comfy):  # noqa: F811
    return open_browser(start_comfy(page=True))


@pytest.fixture(scope="module")
def nodes2(open_browser, start_comfy):  # noqa: F811
    return open_browser(start_comfy(page=True), Comfy_VueNodes_Enabled=True)


@pytest.fixture(params=["canvas", "nodes2"])
def browser(request):
    browser = request.getfixturevalue(request.param)
    browser.page.evaluate(SETUP)
    browser.page.locator(".higgs-clip").wait_for()
    browser.page.mouse.move(5, 500)
    return browser


def until(browser, **values):
    browser.page.wait_for_function(IS % VALUES, arg=values)


def values(browser):
    return browser.page.evaluate(VALUES)


def ended(comfy, prompt):
    """Wait for a run without a page, and return how it ended."""
    deadline = time.monotonic() + WAIT
    while prompt not in (history := comfy.get(f"/history/{prompt}")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return history[prompt]["status"]["status_str"]


def says(browser, text):
    """Wait until the panel's status line has this text."""
    browser.page.locator(".higgs-clip .higgs-says", has_text=text).wait_for()


def drop(browser, name, clip="oliver"):
    data = base64.b64encode((VOICES / f"{clip}.flac").read_bytes()).decode()
    browser.page.evaluate(DROP, [name, data])
    until(browser, clip=name)
    browser.page.wait_for_function(f"() => ({CHECKS})().length === 5")


def test_a_voice_is_recorded_and_the_workflow_repeats_it(browser):
    page = browser.page
    says(browser, "Choose, drop or record a clip")
    browser.shoot("clip-empty")
    page.locator(".higgs-record").click()
    page.wait_for_function("() => parseFloat(document.querySelector('.higgs-seconds').textContent) > 5.5")
    assert page.locator(".higgs-level").get_attribute("aria-valuenow") is not None
    browser.shoot("clip-recording")
    page.locator(".higgs-record").click()
    page.wait_for_function(f"() => ({CHECKS})().length === 5")
    now = values(browser)
    assert now["clip"].startswith("recording 20") and now["clip"].endswith(".wav")
    wav, rate = soundfile.read(browser.comfy.base / "input" / now["clip"])
    assert 5 < len(wav) / rate < 10 and wav.ndim == 1 and 0.05 < abs(wav).max() <= 1
    says(browser, "Now enter its words into transcript.")
    browser.shoot("clip-recorded")
    assert all(text.startswith("✓") for text in page.evaluate(CHECKS)), page.evaluate(CHECKS)
    browser.run()
    prompt = page.evaluate("() => app.graphToPrompt()")["output"]
    (inputs,) = [node["inputs"] for node in prompt.values() if node["class_type"] == "HiggsTTSVoice"]
    assert inputs["clip"] == now["clip"] and "audio" not in inputs
    assert ended(browser.comfy, browser.comfy.post("/prompt", {"prompt": prompt})["prompt_id"]) == "success"
    assert browser.faults == []


def test_a_clip_is_dropped_and_cut_by_pointer_and_keys(browser):
    page = browser.page
    drop(browser, "cut.flac")
    start, end = page.locator(".higgs-handle").all()
    assert (start.get_attribute("aria-valuenow"), end.get_attribute("aria-valuenow")) == ("0.0", "6.7")
    start.focus()
    for key in ("ArrowRight", "Shift+ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    until(browser, start=1.1, length=0)
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+ArrowLeft")
    assert end.get_attribute("aria-valuenow") == "5.7"
    assert abs(values(browser)["length"] - 4.6) < 0.05
    box = page.locator(".higgs-clip canvas").bounding_box()
    y = box["y"] + box["height"] / 2
    at = lambda seconds: box["x"] + box["width"] * seconds / 6.68  # noqa: E731
    page.mouse.move(at(1.1), y)
    page.mouse.down()
    page.mouse.move(at(3), y, steps=5)
    page.mouse.up()
    assert abs(values(browser)["start"] - 3) < 0.15
    page.mouse.move(at(0.5), y)
    page.mouse.down()
    page.mouse.move(at(2), y, steps=5)
    page.mouse.up()
    now = values(browser)
    assert abs(now["start"] - 0.5) < 0.15 and abs(now["length"] - 1.5) < 0.2
    page.wait_for_function(f"() => ({CHECKS})().some((text) => text.startsWith('! length'))")
    browser.shoot("clip-cut")
    before = values(browser)
    saved = page.evaluate("() => app.graph.serialize()")
    page.evaluate("saved => app.loadGraphData(saved)", saved)
    until(browser, **before)
    page.wait_for_function(f"() => ({CHECKS})().length === 5")
    assert browser.faults == []


def test_a_part_is_heard(browser):
    page = browser.page
    drop(browser, "heard.flac", "amber")
    with page.expect_request(lambda request: "/higgs_tts/clip/sound" in request.url) as asked:
        page.locator(".higgs-clip .higgs-play").click()
    assert asked.value.response().status in (200, 206)
    page.wait_for_function("() => document.querySelector('.higgs-clip .higgs-play').textContent === '■'")
    page.locator(".higgs-clip .higgs-play").press("Enter")
    page.wait_for_function("() => document.querySelector('.higgs-clip .higgs-play').textContent === '▶'")
    assert browser.faults == []


def test_a_voice_is_saved_by_keyboard(browser):
    page, voices = browser.page, browser.comfy.base / "models" / "voices"
    for path in voices.glob("Mia*"):
        path.unlink()
    drop(browser, "mia.flac", "clara")
    page.evaluate(TYPE, ["transcript", "Hello, I am Mia, and this is how I speak today."])
    says(browser, "This clip is good.")
    page.locator(".higgs-clip .higgs-save").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("Mia")
    browser.shoot("clip-saving")
    page.keyboard.press("Enter")
    says(browser, "Saved as Mia.wav in models/voices.")
    assert (voices / "Mia.txt").read_text(encoding="utf-8") == "Hello, I am Mia, and this is how I speak today."
    listed = browser.comfy.get("/object_info/HiggsTTSLoadVoice")["HiggsTTSLoadVoice"]["input"]["required"]["voice"]
    assert "Mia.wav" in json.dumps(listed)
    page.locator(".higgs-clip .higgs-save").click()
    page.keyboard.type("../x")
    page.keyboard.press("Enter")
    page.locator(".higgs-saving .higgs-problem", has_text="not a valid voice name").wait_for()
    page.keyboard.press("Escape")
    page.locator(".higgs-saving").wait_for(state="detached")
    assert browser.faults == []


def test_a_voice_whose_transcript_is_linked_is_saved_without_it_and_the_page_says_so(browser):
    page, voices = browser.page, browser.comfy.base / "models" / "voices"
    for path in voices.glob("Nia*"):
        path.unlink()
    drop(browser, "nia.flac", "clara")
    page.evaluate("""() => {
        const text = LiteGraph.createNode("PrimitiveStringMultiline")
        text.pos = [40, 420]
        app.graph.add(text)
        const voice = app.graph._nodes.find(({ type }) => type === "HiggsTTSVoice")
        text.connect(0, voice, voice.inputs.findIndex(({ name }) => name === "transcript"))
    }""")
    says(browser, "This clip is good.")
    page.locator(".higgs-clip .higgs-save").press("Enter")
    page.keyboard.type("Nia")
    page.keyboard.press("Enter")
    says(browser, "Saved as Nia.wav without the linked transcript. Higgs Save Voice keeps both.")
    assert [path.name for path in voices.glob("Nia*")] == ["Nia.wav"] and browser.faults == []


def transcript(browser):
    return values(browser)["transcript"]


def test_whisper_writes_the_transcript_after_one_click(browser):
    page, whisper = browser.page, browser.comfy.base / "models" / "whisper" / "tiny"
    drop(browser, "said.flac", "nora")
    if not whisper.exists():
        page.locator(".higgs-transcribe").click()
        says(browser, "Whisper is missing. Press Transcribe again to download it (1.0 GB).")
        pytest.importorskip("transformers", reason="a small Whisper is made with transformers, which is not installed")
        write_whisper(whisper)
    page.evaluate("() => { app.graph._nodes.find(({ type }) => type === 'HiggsTTSVoice').widgets[1].value = 0.5 }")
    with page.expect_request("**/prompt"):
        page.locator(".higgs-transcribe").click()
    page.wait_for_function("() => document.querySelector('.higgs-transcribe').textContent === 'Transcribe'")
    page.wait_for_function(f"() => ({CHECKS})().length === 5")
    said = transcript(browser)
    (history,) = [
        entry
        for entry in browser.comfy.get("/history").values()
        if any(node["class_type"] == "HiggsTTSTranscribe" for node in entry["prompt"][2].values())
    ]
    (inputs,) = [n["inputs"] for n in history["prompt"][2].values() if n["class_type"] == "HiggsTTSTranscribe"]
    assert inputs["start"] == 0.5 and inputs["whisper"] == "tiny"
    assert said == history["outputs"]["higgs-transcript"]["text"][0].strip()
    assert browser.faults == []


# Whisper's answer, as ComfyUI tells it.
SAID = """app.api.dispatchCustomEvent("executed", {
    node: "higgs-transcript", prompt_id: "listening", output: { text: ["What Whisper has heard."] },
})"""


def test_whisper_s_words_replace_no_others_and_are_of_no_other_clip(browser):
    page = browser.page
    drop(browser, "meanwhile.flac", "nora")
    page.evaluate("""() => {
        const node = LiteGraph.createNode("HiggsTTSTranscribe")
        node.pos = [40, 420]
        app.graph.add(node)
        node.widgets.find(({ name }) => name === "whisper").value = "tiny"
    }""")
    page.route("**/prompt", lambda route: route.fulfill(json={"prompt_id": "listening"}))
    for name, value in (("transcript", "Typed meanwhile."), ("start", 0.5)):
        with page.expect_response("**/prompt"):
            page.locator(".higgs-transcribe").click()
        says(browser, "Whisper is listening")
        page.evaluate(TYPE, [name, value])
        page.wait_for_timeout(600)  # the part is checked, which says nothing now
        page.evaluate(SAID)
        says(browser, "The clip or its transcript has changed. Press Transcribe again.")
        assert transcript(browser) == "Typed meanwhile."
    with page.expect_response("**/prompt"):
        page.locator(".higgs-transcribe").click()
    page.evaluate(SAID)
    until(browser, transcript="What Whisper has heard.")
    page.unroute("**/prompt")
    assert browser.faults == []


def test_the_clip_of_a_connected_load_audio_is_shown(browser):
    page = browser.page
    drop(browser, "linked.flac", "jack")
    page.evaluate("""() => {
        const voice = app.graph._nodes.find(({ type }) => type === "HiggsTTSVoice")
        const clip = voice.widgets.find(({ name }) => name === "clip")
        clip.value = "the audio input"
        clip.callback?.(clip.value)
    }""")
    says(browser, "Choose, drop or record a clip")
    page.evaluate("""() => {
        const load = LiteGraph.createNode("LoadAudio")
        load.pos = [40, 420]
        app.graph.add(load)
        load.widgets.find(({ name }) => name === "audio").value = "linked.flac"
        load.connect(0, app.graph._nodes.find(({ type }) => type === "HiggsTTSVoice"), 1)
    }""")
    page.wait_for_function(f"() => ({CHECKS})().length === 5")
    browser.shoot("clip-linked")
    browser.run()
    assert browser.faults == []


def test_a_workflow_of_before_the_clip_loads_unchanged(browser):
    page = browser.page
    saved = json.loads((SAVED / "clone_voice.json").read_text(encoding="utf-8"))
    page.evaluate("saved => app.loadGraphData(saved)", saved)
    page.wait_for_function("() => app.graph._nodes.some(({ type }) => type === 'HiggsTTSVoice')")
    assert values(browser) == {"clip": "the audio input", "start": 0, "length": 0, "transcript": ""}
    prompt = page.evaluate("() => app.graphToPrompt()")["output"]
    (inputs,) = [node["inputs"] for node in prompt.values() if node["class_type"] == "HiggsTTSVoice"]
    then = json.loads((SAVED / "api" / "clone_voice.json").read_text(encoding="utf-8"))
    (before,) = [node["inputs"] for node in then.values() if node["class_type"] == "HiggsTTSVoice"]
    assert {name: inputs[name] for name in before} == before
    assert inputs == {**before, "start": 0, "length": 0, "clip": "the audio input"}
    assert browser.faults == []


# Keeps the microphones that the page opens, once `allow()` is called.
STREAMS = """() => {
    [window.streams, window.asked] = [[], 0]
    const allowed = new Promise((resolve) => { window.allow = resolve })
    navigator.mediaDevices.getUserMedia = async function (...given) {
        asked += 1
        await allowed
        streams.push(await MediaDevices.prototype.getUserMedia.apply(this, given))
        return streams.at(-1)
    }
}"""
OPEN = "() => streams.filter((stream) => stream.getTracks().some(({ readyState }) => readyState === 'live')).length"
REMOVE = "() => app.graph.remove(app.graph._nodes.find(({ type }) => type === 'HiggsTTSVoice'))"
IS_SILENT = "async () => (await import('/extensions/ComfyUI-Higgs-TTS/js/turns.js')).isSilent()"
LISTED = """name => app.graph._nodes.find(({ type }) => type === "HiggsTTSVoice").widgets
    .find(({ name }) => name === "clip").options.values.includes(name)"""


@pytest.fixture
def microphones(browser):
    """A page that counts its open microphones."""
    browser.page.evaluate(STREAMS)
    yield browser
    browser.page.evaluate("() => { delete navigator.mediaDevices.getUserMedia }")
    assert browser.faults == []


def test_a_second_press_opens_no_second_microphone(microphones):
    page = microphones.page
    for _ in range(2):
        page.locator(".higgs-record").click()
    page.evaluate("() => allow()")
    says(microphones, "Speak 5 to 15 seconds")
    assert page.evaluate("asked") == page.evaluate(OPEN) == 1
    page.locator(".higgs-record").click()
    page.wait_for_function(f"() => ({OPEN})() === 0")


def test_no_microphone_stays_on_for_a_node_that_is_removed_first(microphones):
    page = microphones.page
    page.locator(".higgs-record").click()
    page.evaluate(REMOVE)
    page.evaluate("() => allow()")
    page.wait_for_function(f"() => streams.length === 1 && ({OPEN})() === 0")


def test_a_recording_outlives_its_node(microphones):
    """As undo and another workflow end it: the file is kept, no node is changed, and the next sound may play."""
    page, inputs = microphones.page, microphones.comfy.base / "input"
    saved, before = page.evaluate("() => app.graph.serialize()"), set(inputs.glob("recording*"))
    page.locator(".higgs-record").click()
    page.evaluate("() => allow()")
    page.wait_for_function("() => parseFloat(document.querySelector('.higgs-seconds').textContent) > 1")
    assert not page.evaluate(IS_SILENT)
    with page.expect_response("**/upload/image"):
        page.evaluate("saved => app.loadGraphData(saved)", saved)
    assert page.evaluate(OPEN) == 0 and page.evaluate(IS_SILENT)
    (kept,) = set(inputs.glob("recording*")) - before
    assert soundfile.info(kept).duration > 1
    page.wait_for_function(LISTED, arg=kept.name)
    page.wait_for_timeout(200)
    assert values(microphones)["clip"] == "the audio input"


REFUSING = "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', 'NotAllowedError'))"


def test_a_page_without_a_microphone_says_why(browser):
    browser.page.evaluate(f"() => {{ {REFUSING} }}")
    browser.page.locator(".higgs-record").click()
    says(browser, "The browser refused the microphone. Allow it for this page.")
    browser.page.evaluate("() => Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
    browser.page.locator(".higgs-record").click()
    says(browser, "Browsers allow the microphone only if ComfyUI is at https or localhost.")
    assert browser.faults == []
