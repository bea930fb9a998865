"""Live playback: a real browser on ComfyUI's page, and the output of its speakers."""

from __future__ import annotations

import datetime
import itertools
import json
import uuid

import numpy as np
import pytest
import soundfile
import torch
from higgs_tts.engine import Voice
from higgs_tts.engine.audio.loudness import integrated_loudness
from higgs_tts.tests.templates import TITLES

from .listening import NO_WORKLET, RECORDER, compare, dumped, heard_on
from .server import TODAY
from .test_browser import FAULTS, SET, VOICES, open_browser  # noqa: F401 - a fixture

SEEDS = itertools.count(1000)  # what was said before is not said again
LONG = "The train leaves at half past seven. " * 12
WATCH = """() => {
    heard.reset()
    window.runs = window.runs ?? []
    window.ended = false
    for (const type of ["execution_success", "execution_interrupted"]) {
        app.api.addEventListener(type, () => { window.ended = type }, {once: true})
    }
    if (!window.watched) app.api.addEventListener("higgs_tts.run", (event) => runs.push(event.detail))
    window.watched = true
}"""
IN_MODE = "modes => modes.includes(document.querySelector('.higgs-player')?.dataset.mode)"
LOAD = "saved => app.loadGraphData(saved)"
DUMP = """type => {
    const dump = LiteGraph.createNode("HiggsProbeDump")
    dump.pos = [1000, 900]
    app.graph.add(dump)
    app.graph._nodes.find((node) => node.type === type).connect(0, dump, 0)
}"""


AS_IS = {f"HiggsTTS{name}": {"loudness": "as is"} for name in ("Speak", "Dialogue", "Subtitles")}


def assert_same(listener):
    """Check that the page played the node's output. A busy machine may make it pause."""
    gaps, is_same = compare(listener.heard(), listener.said())
    assert is_same, f"it is something else after {gaps} pauses"


class Listener:
    """A page that records its playback."""

    def __init__(self, browser):
        self.browser, self.page, self.comfy = browser, browser.page, browser.comfy

    def open(self, template="speak", node="HiggsTTSSpeak", **widgets):
        """Open a template with an id of its own, a new seed, no retries and the loudness that is heard."""
        saved = json.loads((TODAY / f"{TITLES[template]}.json").read_text(encoding="utf-8"))
        self.page.evaluate(LOAD, {**saved, "id": str(uuid.uuid4())})
        self.page.evaluate(DUMP, node)
        for name, value in ({"seed": next(SEEDS), "retries": 0} | AS_IS.get(node, {}) | widgets).items():
            self.page.evaluate(SET, [node, name, value])

    def start(self):
        """Press Run."""
        self.page.evaluate(WATCH)
        self.page.get_by_test_id("queue-button").click()

    def until(self, *modes):
        """Wait until the player is in one of these modes."""
        self.page.wait_for_function(IN_MODE, arg=modes, timeout=240_000)

    def until_done(self):
        self.page.wait_for_function("() => window.ended", timeout=240_000)
        return self.page.evaluate("ended")

    def heard(self):
        """Return trimmed 16-bit samples [n]."""
        return heard_on(self.page)

    def said(self):
        """Return the node's output [n] as trimmed 16-bit samples."""
        return dumped(self.comfy)

    def says(self):
        return self.page.locator(".higgs-says").inner_text()


@pytest.fixture(scope="module")
def open_listener(open_browser, make_bare):  # noqa: F811
    """open_listener(*scripts, **settings) -> Listener on a page of its own."""
    opened = []

    def make(*scripts, **settings):
        opened.append(Listener(open_browser(make_bare(page=True), "\n;".join([RECORDER, *scripts]), **settings)))
        return opened[-1]

    yield make
    for listener in opened:
        listener.page.close()


@pytest.fixture(scope="module", params=[False, True], ids=["canvas", "nodes2"])
def listener(request, open_listener):
    return open_listener(Comfy_VueNodes_Enabled=request.param)


@pytest.fixture(scope="module")
def classic(open_listener):
    return open_listener(Comfy_VueNodes_Enabled=False)


def test_the_page_plays_the_node_s_speech_and_saves_none_of_it(listener):
    listener.open()
    before = listener.page.evaluate("() => app.graph.serialize()")
    listener.start()
    listener.until("playing")
    listener.browser.shoot("player-running")
    listener.until_done()
    listener.until("ended")
    listener.browser.shoot("player-done")
    assert_same(listener)
    assert len(listener.page.evaluate("runs")) == 1
    after = listener.page.evaluate("() => app.graph.serialize()")
    saved, again = (
        [node["widgets_values"] for node in graph["nodes"] if node["type"] == "HiggsTTSSpeak"]
        for graph in (before, after)
    )
    assert saved == again
    sent = listener.page.evaluate("async () => Object.values((await app.graphToPrompt()).output)")
    (asked,) = [node["inputs"] for node in sent if node["class_type"] == "HiggsTTSSpeak"]
    assert "player" not in asked and listener.browser.faults == []
    faults = [fault for fault in listener.page.evaluate(FAULTS) if "HiggsProbeDump" not in fault]
    assert faults == []


@pytest.mark.parametrize("kind", ["off", "flac"])
def test_the_result_is_downloaded_under_the_name_of_its_file(listener, tmp_path, kind):
    prefix = "%date:yyyy%/%Higgs Speak.save_as% test"
    listener.open(loudness="-16 LUFS", save_as=kind, filename_prefix=prefix)
    listener.start()
    listener.until_done()
    listener.until("ended")
    with listener.page.expect_download() as loading:
        listener.page.locator(".higgs-download").click()
    name = loading.value.suggested_filename
    loading.value.save_as(tmp_path / name)
    wav, rate = soundfile.read(tmp_path / name, dtype="float32")
    assert rate == 24000 and integrated_loudness(torch.from_numpy(wav)) == pytest.approx(-16, abs=0.1)
    year = str(datetime.datetime.now(datetime.UTC).year)
    saved = [path.name for path in (listener.comfy.base / "output" / year).glob("flac test_*_.flac")]
    assert name in (["speech.wav"] if kind == "off" else saved)


def test_a_page_without_sound_rests(classic):
    """A running context costs a core some percent even while it is silent."""
    classic.open()
    classic.start()
    classic.until_done()
    classic.until("ended")
    classic.page.wait_for_function("heard.context.state === 'suspended'")
    classic.page.locator(".higgs-play").click()
    classic.until("playing")
    assert classic.page.evaluate("heard.context.state") == "running"
    classic.page.locator(".higgs-play").click()
    classic.page.wait_for_function("heard.context.state === 'suspended'")
    classic.page.locator(".higgs-play").click()
    classic.until("ended")


def test_the_player_replays_from_where_the_waveform_is_clicked(classic):
    classic.open()
    classic.start()
    classic.until_done()
    classic.until("ended")
    classic.page.evaluate("() => heard.reset()")
    box = classic.page.locator(".higgs-wave").bounding_box()
    classic.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    classic.until("paused")
    classic.page.locator(".higgs-play").click()
    classic.until("ended")
    heard, said = classic.heard(), classic.said()
    assert abs(len(heard) / len(said) - 0.5) < 0.1
    assert compare(heard, said[-len(heard) :])[1]


def test_the_player_sets_volume_and_pauses(classic):
    classic.open()
    classic.page.evaluate("() => localStorage.removeItem('HiggsTTS.volume')")
    classic.start()
    classic.until("playing")
    classic.page.locator(".higgs-play").click()
    classic.until("paused")
    classic.until_done()
    classic.page.locator(".higgs-volume").fill("0.5")
    classic.page.evaluate("() => heard.reset()")
    classic.page.locator(".higgs-play").click()
    classic.until("ended")
    heard, said = classic.heard(), classic.said()
    classic.page.locator(".higgs-volume").fill("1")
    rest = said[-len(heard) :].astype(int)
    assert 0 < len(heard) < len(said) and np.abs(2 * heard.astype(int) - rest).max() <= 2


def test_stop_cancels_the_node_and_silences_the_player(classic):
    classic.open(text=LONG * 8)  # not whole before the click
    classic.start()
    classic.until("playing")
    classic.page.locator(".higgs-stop").click()
    classic.until("paused")
    assert classic.until_done() == "execution_interrupted"
    classic.page.wait_for_function("() => document.querySelector('.higgs-player').dataset.state === 'stopped'")
    quiet = len(classic.heard())
    classic.page.wait_for_timeout(300)
    assert len(classic.heard()) == quiet and "Stopped." in classic.says()


def test_a_reloaded_page_catches_up(classic):
    classic.open(text=LONG[:150])
    classic.start()
    classic.until("playing")
    classic.page.reload()
    classic.page.wait_for_function("window.app?.graph && app.canvas?.canvas")
    classic.until("paused")
    classic.page.evaluate(WATCH)
    classic.page.locator(".higgs-play").click()
    classic.until("ended")
    assert_same(classic)


def test_a_bad_first_take_restarts_and_the_player_says_why(classic):
    classic.open(retries=2)
    classic.comfy.get("/higgs_probe/bad")
    classic.start()
    classic.until_done()
    classic.until("ended")
    assert "Spoken again: it fell silent." in classic.says()
    heard, said = classic.heard(), classic.said()
    # The first take was heard as well, up to where it was given up.
    starts = np.flatnonzero(heard[: len(heard) - 4800] == said[0])
    begins = [start for start in starts if np.array_equal(heard[start : start + 4800], said[:4800])]
    assert begins and compare(heard[begins[-1] :], said)[1]


def test_a_dialogue_plays_to_its_end(classic):
    """Turns are made equally loud once all are spoken, and the player then has that version."""
    classic.open("dialogue", "HiggsTTSDialogue")
    classic.start()
    classic.until_done()
    classic.until("ended")
    classic.page.evaluate("() => heard.reset()")
    classic.page.locator(".higgs-play").click()
    classic.until("playing")
    classic.until("ended")
    assert_same(classic)


WIDTHS = """() => {
    const node = app.graph._nodes.find((node) => node.type === "HiggsTTSSpeak")
    const { width } = document.querySelector(".higgs-player").getBoundingClientRect()
    return [node.size[0], width / app.canvas.ds.scale]
}"""
WIDEN = """() => {
    const node = app.graph._nodes.find((node) => node.type === "HiggsTTSSpeak")
    node.setSize([node.size[0] + 100, node.size[1]])
    app.canvas.setDirty(true, true)
}"""


def test_the_player_fits_its_node_after_the_properties_panel_was_open(listener):
    listener.open(text="A short text.")
    page = listener.page
    listener.start()
    listener.until_done()
    listener.until("ended")
    node, player = page.evaluate(WIDTHS)
    page.evaluate("() => app.canvas.selectItems(app.graph._nodes.filter(({ type }) => type === 'HiggsTTSSpeak'))")
    toggle, panel = page.get_by_role("button", name="Toggle properties panel"), page.get_by_test_id("properties-panel")
    toggle.click()
    panel.get_by_text("temperature").first.wait_for()
    listener.browser.shoot("panel")
    version = [int(part) for part in page.evaluate("window.__COMFYUI_FRONTEND_VERSION__").split(".")]
    assert panel.get_by_text("player").count() == 0 or version < [1, 49], "an empty row"
    toggle.click()
    panel.wait_for(state="detached")
    page.evaluate(WIDEN)
    page.wait_for_timeout(300)  # until it is drawn
    listener.browser.shoot("player-after-the-panel")
    assert page.evaluate(WIDTHS) == pytest.approx([node + 100, player + 100], abs=1)
    assert listener.browser.faults == []


def test_replacing_samples_during_a_request_is_no_error(classic):
    """A browser logs every answer from 400 on in its console."""
    page, refused = classic.page, []
    classic.open("dialogue", "HiggsTTSDialogue")
    page.on("response", lambda answer: answer.status >= 400 and "/higgs_tts/" in answer.url and refused.append(answer))
    page.evaluate("""() => {
        const ask = app.api.fetchApi
        const ended = new Promise((resolve) => app.api.addEventListener("execution_success", resolve, { once: true }))
        app.api.fetchApi = async function (route, options) {
            if (route.includes("/samples")) await ended
            return ask.call(this, route, options)
        }
        window.hurry = () => { app.api.fetchApi = ask }
    }""")
    classic.start()
    classic.until_done()
    classic.until("ended")
    page.evaluate("hurry()")
    assert refused == [] and classic.browser.faults == []
    assert_same(classic)


def test_two_runs_are_heard_one_after_the_other(classic):
    classic.open(text="The first one takes some seconds to be heard, so that the second has to wait for its end.")
    classic.start()
    classic.page.evaluate(SET, ["HiggsTTSSpeak", "text", "And the second."])
    classic.page.get_by_test_id("queue-button").click()
    classic.page.wait_for_function("() => runs.length >= 2", timeout=240_000)
    classic.page.wait_for_function("() => window.ended && !document.querySelector('.higgs-stop:not([style*=hidden])')")
    classic.until("ended")
    heard, second = classic.heard(), classic.said()
    assert len(heard) > len(second) and np.array_equal(heard[-len(second) :], second)


def test_two_takes_can_be_compared_and_one_kept(listener):
    listener.open(text="The first take of it.")
    page, first = listener.page, next(SEEDS)
    for seed in (first, first + 50):
        page.evaluate(SET, ["HiggsTTSSpeak", "seed", seed])
        page.evaluate(SET, ["HiggsTTSSpeak", "control_after_generate", "randomize"])
        listener.start()
        listener.until_done()
        listener.until("ended")
    page.locator(".higgs-open-takes").click()
    rows = page.locator(".higgs-take")
    names = rows.locator(".higgs-name").all_inner_texts()
    assert names[0].startswith(f"seed {first + 50} · ") and names[1].startswith(f"seed {first} · ")
    assert "The first take of it." in rows.nth(1).inner_text()
    page.evaluate("() => heard.reset()")
    rows.nth(1).locator(".higgs-hear").click()
    listener.until("playing")
    listener.browser.shoot(f"takes-{'nodes2' if page.locator('[data-node-id]').count() else 'canvas'}")
    listener.until("ended")
    assert len(listener.heard()) > 0 and rows.nth(1).get_attribute("class") == "higgs-take higgs-shown"
    rows.nth(1).get_by_text("Keep").click()
    assert rows.nth(1).get_by_role("button", name="Kept").is_disabled()
    assert rows.nth(0).get_by_role("button", name="Keep").is_enabled()
    value = listener.browser.value
    assert value("HiggsTTSSpeak", "seed") == first and value("HiggsTTSSpeak", "control_after_generate") == "fixed"
    page.keyboard.press("Escape")
    assert rows.count() == 0 and listener.browser.faults == []
    listener.start()
    listener.until_done()
    sent = page.evaluate("async () => Object.values((await app.graphToPrompt()).output)")
    assert [node["inputs"]["seed"] for node in sent if node["class_type"] == "HiggsTTSSpeak"] == [first]


def test_a_take_that_the_node_repeats_is_not_kept(classic):
    """A new node's seed is fixed, but its take was not kept."""
    classic.open(text="Said with the seed that the node has.", control_after_generate="fixed")
    page = classic.page
    classic.start()
    classic.until_done()
    classic.until("ended")
    page.locator(".higgs-open-takes").click()
    keep = page.locator(".higgs-take").first.locator(".higgs-keep")
    assert not keep.is_visible(), keep.inner_text()
    page.keyboard.press("Escape")
    seed = classic.browser.value("HiggsTTSSpeak", "seed")
    page.evaluate(SET, ["HiggsTTSSpeak", "seed", seed + 500])
    page.locator(".higgs-open-takes").click()
    keep.click()
    assert keep.inner_text() == "Kept" and classic.browser.value("HiggsTTSSpeak", "seed") == seed
    page.keyboard.press("Escape")
    page.locator(".higgs-open-takes").click()
    assert keep.inner_text() == "Kept"
    page.keyboard.press("Escape")


def test_takes_of_a_row_can_be_heard_and_one_kept(listener):
    sheet = "id,speaker,text\na,Anna,One fish.\nb,Tom,Two fish."
    listener.open("lines", "HiggsTTSLines", lines=sheet, takes=2, seed=7, folder=f"fish/{next(SEEDS)}")
    page = listener.page
    listener.start()
    listener.until_done()
    listener.until("playing", "paused", "ended")  # it waits no longer until another one has ended
    page.get_by_role("button", name="Hear 2 rows, 4 takes").click()
    rows = page.locator(".higgs-take")
    assert [name.split(" ")[0] for name in rows.locator(".higgs-name").all_inner_texts()] == [
        "a_1.wav", "a_2.wav", "b_1.wav", "b_2.wav",
    ]  # fmt: skip
    with page.expect_response(lambda answer: "b_2.wav" in answer.url) as heard:
        rows.nth(3).locator(".higgs-hear").click()
    assert heard.value.status in (200, 206)
    listener.until("paused", "ended")
    rows.nth(3).get_by_text("Keep").click()
    rows.nth(3).get_by_role("button", name="Kept").wait_for()
    listener.browser.shoot(f"gallery-{'nodes2' if page.locator('[data-node-id]').count() else 'canvas'}")
    page.keyboard.press("Escape")
    kept = "id,speaker,text,seed\na,Anna,One fish.\nb,Tom,Two fish.,8"
    assert listener.browser.value("HiggsTTSLines", "lines") == kept
    assert rows.count() == 0 and listener.browser.faults == []


def test_subtitles_play_once_they_are_mixed(classic):
    classic.open("subtitles", "HiggsTTSSubtitles")
    classic.start()
    classic.until_done()
    classic.until("ended")
    assert_same(classic)


def test_buffers_are_scheduled_if_worklets_are_unavailable(open_listener):
    listener = open_listener(NO_WORKLET, Comfy_VueNodes_Enabled=False)
    listener.open()
    listener.start()
    listener.until_done()
    listener.until("ended")
    assert_same(listener)
    assert not listener.page.evaluate("'audioWorklet' in BaseAudioContext.prototype") and listener.browser.faults == []


def test_a_speaker_in_a_subgraph_has_its_player_inside(classic):
    classic.open()
    classic.page.evaluate("""() => {
        const speak = app.graph._nodes.find((node) => node.type === "HiggsTTSSpeak")
        const { node } = app.graph.convertToSubgraph(new Set([speak]))
        window.outer = node
    }""")
    classic.start()
    classic.until_done()
    classic.page.evaluate("() => app.canvas.setGraph(outer.subgraph)")
    classic.until("ended")
    assert_same(classic)


def test_other_pages_stay_silent_and_the_setting_silences_all(classic, open_listener):
    other = open_listener(Comfy_VueNodes_Enabled=False)
    other.page.evaluate(WATCH)
    classic.open()
    classic.start()
    classic.until_done()
    client = "async () => (await (await app.api.fetchApi(`/higgs_tts/runs?client=${app.api.clientId}`)).json()).length"
    assert other.page.evaluate(client) == 0 and other.page.evaluate("runs") == []
    kept = classic.page.evaluate(client)
    classic.page.evaluate("() => app.extensionManager.setting.set('HiggsTTS.PlayWhileSpeaking', false)")
    try:
        classic.page.wait_for_timeout(300)
        classic.page.evaluate(SET, ["HiggsTTSSpeak", "seed", next(SEEDS)])
        told = len(classic.page.evaluate("runs"))
        classic.start()
        classic.until_done()
        assert len(classic.page.evaluate("runs")) == told and classic.page.evaluate(client) == kept
    finally:
        classic.page.evaluate("() => app.extensionManager.setting.set('HiggsTTS.PlayWhileSpeaking', true)")


@pytest.mark.parametrize("vue", [False, True], ids=["canvas", "nodes2"])
def test_voices_can_be_listed_heard_and_chosen(open_listener, vue):
    listener = open_listener(Comfy_VueNodes_Enabled=vue)
    page, voices = listener.page, listener.comfy.base / "models" / "voices"
    (voices / "lora.safetensors").write_bytes(b"no voice")
    Voice(torch.zeros(50, 8, dtype=torch.int64), "Two.", "other", "1+1").save(voices / "other.safetensors")
    page.evaluate(LOAD, json.loads((TODAY / f"{TITLES['dialogue']}.json").read_text(encoding="utf-8")))
    told = page.locator(".higgs-voice").first
    amber, oliver = (f"{soundfile.info(VOICES / f'{name}.flac').duration:.1f} s" for name in ("amber", "oliver"))
    told.get_by_text(f"{amber} · The garden is quiet").wait_for()
    listed = "() => LiteGraph.createNode('HiggsTTSLoadVoice').widgets[0].options.values"
    page.evaluate("() => app.refreshComboInNodes()")
    assert "lora.safetensors" not in page.evaluate(listed)
    told.get_by_title("All voices").click()
    rows = page.locator(".higgs-voices > div")
    rows.filter(has_text="other.safe").wait_for()
    assert rows.filter(has_text="other.safe").get_attribute("class") == "higgs-unfit"
    assert "different model" in rows.filter(has_text="other.safe").inner_text()
    with page.expect_response(lambda answer: "/higgs_tts/voice?" in answer.url) as heard:
        rows.filter(has_text="oliver").get_by_role("button").click()
    assert heard.value.status in (200, 206)
    listener.browser.shoot("voices")
    rows.filter(has_text="oliver").click()
    page.wait_for_function(
        "start => document.querySelector('.higgs-voice .higgs-said').textContent.startsWith(start)", arg=oliver
    )
    assert listener.browser.value("HiggsTTSLoadVoice", "voice") == "built-in/oliver.flac" and rows.count() == 0
    saved = page.evaluate(
        "() => app.graph.serialize().nodes.find((n) => n.type === 'HiggsTTSLoadVoice').widgets_values"
    )
    assert saved == ["built-in/oliver.flac"] and listener.browser.faults == []
    assert page.evaluate(FAULTS) == []
    for name in ("lora", "other"):
        (voices / f"{name}.safetensors").unlink()


def test_the_player_says_why_it_waits_after_the_first_chunk(classic):
    """Chunks after the first are played once they are complete, and a fast machine completes them in time."""
    classic.open(text=LONG * 4, chunk_seconds=20, retries=2)
    classic.comfy.get("/higgs_probe/slow?seconds=0.1")
    page = classic.page
    page.evaluate("""() => {
        window.waits = []
        const says = () => waits.push(document.querySelector(".higgs-says")?.textContent)
        new MutationObserver(says).observe(document.body, { childList: true, subtree: true, characterData: true })
    }""")
    classic.start()
    page.wait_for_function(
        "() => waits.some((said) => said?.startsWith('Waiting for the next part: '))", timeout=240_000
    )
    classic.browser.shoot("waiting")
    classic.comfy.get("/higgs_probe/slow?seconds=0")
    page.locator(".higgs-stop").click()
    classic.until_done()
    assert classic.browser.faults == []
