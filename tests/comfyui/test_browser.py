"""The pack in a real browser on ComfyUI's own page. Screenshots go to pytest's temporary folder."""

from __future__ import annotations

import json
import pathlib
import subprocess

import pytest
from higgs_tts.tests.templates import TITLES

from . import chromium
from .server import TODAY, WAIT, interpreter, read_workflow

VOICES = pathlib.Path(__file__).resolve().parents[2] / "engine" / "voice" / "built_in"
BLUEPRINTS = sorted((pathlib.Path(__file__).resolve().parents[2] / "subgraphs").glob("*.json"))
SAVED = pathlib.Path(__file__).resolve().parents[1] / "golden" / "workflows_0.1.0"  # as users saved them with 0.1.0
NODES = [
    "HiggsTTSLoadModel",
    "HiggsTTSLoadLoRA",
    "HiggsTTSVoice",
    "HiggsTTSSaveVoice",
    "HiggsTTSLoadVoice",
    "HiggsTTSSpeak",
    "HiggsTTSDialogue",
    "HiggsTTSLines",
    "HiggsTTSSubtitles",
    "HiggsTTSBook",
    "HiggsTTSLipSync",
    "HiggsTTSTranscribe",
    "HiggsTTSTrainVoice",
    "HiggsTTSServer",
]

# Where a point of a node lies on the page: x is a share of its width, y counts down from its top.
PLACE = """([type, x, widget]) => {
    const node = app.graph._nodes.find(node => node.type === type)
    const y = widget ? node.widgets.find(entry => entry.name === widget).last_y + 10 : -12
    const at = app.canvas.convertOffsetToCanvas([node.pos[0] + node.size[0] * x, node.pos[1] + y])
    const page = app.canvas.canvas.getBoundingClientRect()
    return [page.left + at[0], page.top + at[1]]
}"""
DRAWN = f"given => ({PLACE})(given).every(Number.isFinite)"  # a widget has its place once it was drawn
VALUE = """([type, widget]) =>
    app.graph._nodes.find(node => node.type === type).widgets.find(entry => entry.name === widget).value"""
WIDGETS = """type => app.graph._nodes.find(node => node.type === type).widgets.map(w => [w.name, w.value])"""
SHOWN = """type => app.graph._nodes.find(node => node.type === type).widgets.map(w => w.value).join("\\n")"""
SET = """([type, widget, value]) => {
    app.graph._nodes.find(node => node.type === type).widgets.find(entry => entry.name === widget).value = value
}"""
# Adds each node as ComfyUI makes it; names the widgets whose label and value do not fit beside each other.
CUT_LABELS = """types => {
    app.graph.clear()
    const cut = [], pen = document.createElement("canvas").getContext("2d")
    pen.font = "14px Inter, Arial, sans-serif"
    types.forEach((type, index) => {
        const node = LiteGraph.createNode(type)
        node.pos = [60 + 380 * (index % 4), 60 + 320 * Math.floor(index / 4)]
        app.graph.add(node)
        for (const widget of node.widgets ?? []) {
            if (widget.options?.multiline || widget.element || widget.type === "customtext") continue
            const words = `${widget.label ?? widget.name} ${widget.value}`
            if (pen.measureText(words).width > node.size[0] - 70) cut.push(`${type}: ${words}`)
        }
    })
    app.canvas.ds.reset()
    return cut
}"""
FAULTS = """() => {
    const faults = [], nodes = app.graph._nodes
    for (const node of nodes) {
        const least = node.computeSize()
        if (node.size[0] < least[0] || node.size[1] < least[1]) faults.push(`${node.type} is too small: ${node.size}`)
        if (node.has_errors && !node.type.startsWith("LoadAudio")) faults.push(`${node.type} has errors`)
        for (const other of nodes) {
            const [a, b] = [node.getBounding(), other.getBounding()]
            const apart = a[0] + a[2] <= b[0] || a[1] + a[3] <= b[1] || b[0] + b[2] <= a[0] || b[1] + b[3] <= a[1]
            if (node.id < other.id && !apart) faults.push(`${node.type} lies on ${other.type}`)
        }
    }
    return faults
}"""

# A node of one of these types is new and drawn, on the canvas or as an element.
OPENED = """types => app.graph._nodes.some(node => types.includes(node.type) && !node.wasHereBefore &&
    (document.querySelector(`[data-node-id="${node.id}"]`) || node.widgets.every(widget => widget.last_y)))"""
TOO_WIDE = """page => [...page.querySelectorAll("*")]
    .filter(part => part.scrollWidth > page.clientWidth).map(part => part.tagName)"""


class Browser:
    """ComfyUI's page, and a user's actions on it."""

    def __init__(self, page, comfy, shots, host):
        self.comfy, self._shots, self._host, self.faults, self.warnings = comfy, shots, host, [], []
        self._open(page)

    def _open(self, page):
        self.page = page
        page.set_default_timeout(1000 * WAIT)
        page.route(lambda url: f"//{self._host}" not in url, lambda route: route.abort())
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: message.type == "warning" and self.warnings.append(message.text))
        page.goto(f"http://{self._host}:{self.comfy.port}/")
        page.wait_for_function("window.app?.graph && app.canvas?.canvas")
        page.get_by_test_id("side-toolbar").wait_for()

    def reopen(self):
        """Close the browser's tab and open ComfyUI in another."""
        self.page.wait_for_timeout(1000)  # until the page has noted which workflows are open
        self.page.close()
        self._open(self.page.context.new_page())

    def shoot(self, name):
        self.page.screenshot(path=str(self._shots / f"{name}.png"))

    def open_template(self, name):
        """Open a template through the templates dialog, like a user."""
        self.page.evaluate("() => { for (const node of app.graph._nodes) node.wasHereBefore = true }")
        self.page.get_by_test_id("side-toolbar").get_by_text("Templates").click()
        self.page.get_by_text("ComfyUI-Higgs-TTS").click()
        self.page.get_by_test_id(f"template-workflow-{TITLES.get(name, name)}").click()
        self.page.wait_for_function(
            OPENED, arg=["HiggsTTSSpeak", "HiggsTTSDialogue", "HiggsTTSLines", "HiggsTTSSubtitles", "HiggsTTSBook"]
        )
        self.page.get_by_test_id("dialog-overlay").wait_for(state="detached")
        self.page.wait_for_timeout(500)  # the view glides to the graph

    def click(self, node, x=0.5, widget=None):
        self.page.wait_for_function(DRAWN, arg=[node, x, widget])
        self.page.mouse.click(*self.page.evaluate(PLACE, [node, x, widget]))

    def value(self, node, widget):
        return self.page.evaluate(VALUE, [node, widget])

    def run(self):
        """Press Run and wait for the end. Returns the titles of the browser's tab meanwhile."""
        self.page.evaluate("""() => {
            window.titles = []; window.ended = false
            new MutationObserver(() => titles.push(document.title)).observe(document.querySelector("title"),
                {childList: true, characterData: true, subtree: true})
            for (const type of ["execution_success", "execution_error", "execution_interrupted"])
                app.api.addEventListener(type, ({detail}) => { window.ended ||= [type, detail] }, {once: true})
        }""")
        from playwright.sync_api import TimeoutError as WaitedTooLong

        self.page.get_by_test_id("queue-button").click()
        try:
            self.page.wait_for_function("() => window.ended", timeout=240_000)
        except WaitedTooLong as error:
            log = self.comfy.log.read_text(errors="replace")
            said = self.page.locator("body").inner_text(), self.comfy.get("/queue"), log[-3000:]
            raise AssertionError(said) from error
        how, detail = self.page.evaluate("() => window.ended")
        assert how == "execution_success", detail
        return self.page.evaluate("() => titles")

    def press(self):
        """Press Run where it must fail. Returns the ids of the nodes to blame, but for those that wait for them."""
        self.page.evaluate("""() => {
            window.blamed = null
            app.lastNodeErrors = null
            const blame = ({detail}) => { window.blamed = [detail.node_id] }
            app.api.addEventListener("execution_error", blame, {once: true})
        }""")
        self.page.get_by_test_id("queue-button").click()
        refused = "Object.entries(app.lastNodeErrors ?? {}).filter(([id, {errors}]) => errors.length).map(([id]) => id)"
        self.page.wait_for_function(f"() => window.blamed ?? ({refused}.length > 0)")
        blamed = self.page.evaluate(f"() => window.blamed ?? {refused}")
        self.page.wait_for_timeout(500)
        self.shoot("refused")
        self.page.keyboard.press("Escape")
        return blamed

    def player(self, other_than=None):
        """Return (address, status, type, bytes) of the audio player's source."""
        player = self.page.wait_for_function(
            "old => [...document.querySelectorAll('audio')].find(a => a.src && a.src !== old && a.duration > 0)",
            arg=other_than,
        ).as_element()
        address = player.get_attribute("src")
        answer = self.page.request.get(address if "://" in address else f"http://127.0.0.1:{self.comfy.port}{address}")
        return player.evaluate("a => a.src"), answer.status, answer.headers["content-type"], answer.body()

    def unload(self):
        """Menu > Edit > Unload Models."""
        # As ComfyUI's frontend has it up to 1.49, and since 1.58.
        self.page.locator(".comfy-menu-button-wrapper, [data-testid='comfy-menu-button']").click()
        self.page.get_by_text("Edit", exact=True).hover()
        self.page.get_by_text("Unload Models", exact=True).click()


@pytest.fixture(scope="module")
def open_browser(tmp_path_factory, chromium_flags):
    """open_browser(comfy, script=None, host="127.0.0.1", **settings) -> Browser. The script runs before the page's."""
    pytest.importorskip("playwright", reason="Playwright is not installed: pip install playwright")
    if chromium.on_the_path() is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    if subprocess.run([interpreter(), "-c", "import comfyui_frontend_package"], capture_output=True).returncode:
        pytest.skip("this ComfyUI has no page: pip install comfyui-frontend-package")
    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(
            executable_path=chromium.on_the_path(), args=[*chromium.ARGS, *chromium_flags]
        )

        def show(comfy, script=None, host="127.0.0.1", **settings):
            # No dialog of its own accord.
            settings = {name.replace("_", "."): value for name, value in settings.items()}
            comfy.post("/settings", {"Comfy.TutorialCompleted": True, **settings})
            context = chrome.new_context(viewport={"width": 1600, "height": 1000})
            if script:
                context.add_init_script(script)
            return Browser(context.new_page(), comfy, tmp_path_factory.mktemp("screenshots"), host)

        yield show
        chrome.close()


@pytest.fixture(scope="module")
def browser(open_browser, start_comfy):
    return open_browser(start_comfy(page=True))


@pytest.fixture(scope="module")
def fresh_browser(open_browser, make_bare):
    """A browser on a ComfyUI just after the pack was installed: no checkpoint, no voice and no clip."""
    return open_browser(make_bare(page=True))


@pytest.fixture(scope="module")
def fresh_nodes2(open_browser, start_comfy):
    """As `fresh_browser`, a ComfyUI of its own in Nodes 2.0."""
    return open_browser(start_comfy(page=True, bare=True), Comfy_VueNodes_Enabled=True)


@pytest.fixture(params=["fresh_browser", "fresh_nodes2"], ids=["canvas", "nodes2"])
def fresh_page(request):
    return request.getfixturevalue(request.param)


def test_scripts_request_no_private_comfyui_modules(fresh_browser):
    assert [told for told in fresh_browser.warnings if "internal module" in told] == []


OTHERS = (
    "book",
    "clone_voice",
    "lip_sync",
    "lora",
    "server",
    "training",
)  # which need a file, or have a test of their own


@pytest.mark.parametrize("name", [name for name in TITLES if name not in OTHERS])
def test_a_template_speaks_after_three_clicks(fresh_page, name):
    """In the opened template browser: our pack, a template, Run."""
    browser = fresh_page
    browser.open_template(name)
    browser.run()
    browser.shoot(f"first-{name}")
    _, status, kind, sound = browser.player()
    assert status == 200 and kind.startswith("audio/") and len(sound) > 50_000
    info = browser.page.evaluate(SHOWN, "HiggsTTSLines" if name == "lines" else "PreviewAny")
    assert "Complete." in info or "on time without changes" in info, info
    assert "Model: embedded" in info and "Warning" not in info, info
    assert browser.page.evaluate(FAULTS) == [] and browser.faults == []


@pytest.mark.parametrize(
    ("name", "need"),
    [
        ("clone_voice", "first choose or record a clip"),
        ("lora", "first put one into models/loras"),
        ("server", "first start the server"),
    ],
)
def test_a_template_that_needs_something_says_so_on_the_node_before_the_run(fresh_page, name, need):
    browser = fresh_page
    browser.open_template(name)
    browser.shoot(f"needs-{name}")
    titles = browser.page.evaluate("() => Object.fromEntries(app.graph._nodes.map(node => [node.id, node.title]))")
    (failed,) = browser.press()
    assert need in titles[failed] and browser.faults == []


@pytest.mark.parametrize("path", BLUEPRINTS, ids=[path.stem for path in BLUEPRINTS])
def test_a_blueprint_speaks_with_one_click_or_says_what_it_needs(fresh_browser, path):
    browser, page = fresh_browser, fresh_browser.page
    page.evaluate("saved => app.loadGraphData(saved)", json.loads(path.read_text(encoding="utf-8")))
    page.wait_for_timeout(500)
    browser.shoot(path.stem)
    if path.stem.endswith("Clone a Voice"):
        labels = page.evaluate("() => app.graph._nodes[0].inputs.map(input => input.label)")
        assert "clip: connect Load Audio" in labels
        assert browser.press(), "a required input is missing"
    else:
        browser.run()
    assert browser.faults == []


def test_the_lip_sync_template_shows_mouth_shapes(fresh_page):
    fresh_page.open_template("lip_sync")
    fresh_page.run()
    fresh_page.shoot("lip-sync")
    mouth = json.loads(fresh_page.page.evaluate(SHOWN, "PreviewAny").splitlines()[0])
    cues = mouth["mouthCues"]
    assert len(cues) > 20 and cues[-1]["end"] == mouth["metadata"]["duration"] > 2
    assert {cue["value"] for cue in cues} > set("ABCX") and fresh_page.faults == []


def test_a_user_s_own_clip_is_cloned_within_five_clicks(fresh_browser):
    """Templates, our pack, the template, choose file to upload, Run."""
    browser, page = fresh_browser, fresh_browser.page
    page.evaluate("""() => {
        window.clicks = 0
        addEventListener("click", event => { window.clicks += event.isTrusted ? 1 : 0 }, true)
    }""")
    browser.open_template("clone_voice")
    with page.expect_file_chooser() as chooser:
        browser.click("HiggsTTSVoice", widget="upload")
    sound = (VOICES / "oliver.flac").read_bytes()
    chooser.value.set_files({"name": "own.flac", "mimeType": "audio/flac", "buffer": sound})
    page.wait_for_function(
        "() => app.graph._nodes.find(({type}) => type === 'HiggsTTSVoice').widgets.some(w => w.value === 'own.flac')"
    )
    browser.run()
    browser.shoot("own-clip")
    info = page.evaluate(SHOWN, "PreviewAny")
    assert "Complete." in info and "Model: embedded" in info, info
    assert page.evaluate("() => clicks") <= 5 and browser.faults == []


@pytest.mark.parametrize(
    "name, node, widget, file, value",
    [
        ("dialogue", "HiggsTTSLoadVoice", "voice", "mine.flac", "input/mine.flac"),
        ("book", "HiggsTTSBook", "book", "tale.md", "tale.md"),
        ("subtitles", "HiggsTTSSubtitles", "srt", "film.srt", "film.srt"),
    ],
)
def test_a_button_uploads_files(fresh_browser, tmp_path, name, node, widget, file, value):
    browser, path = fresh_browser, tmp_path / file
    path.write_bytes((VOICES / "oliver.flac").read_bytes() if file.endswith("flac") else f"# {file}".encode())
    browser.open_template(name)
    with browser.page.expect_file_chooser() as chooser:
        browser.click(node, widget="upload")
    chooser.value.set_files(str(path))
    chosen = "([n, w, v]) => app.graph._nodes.some(o => o.type === n && o.widgets.find(o => o.name === w).value === v)"
    browser.page.wait_for_function(chosen, arg=[node, widget, value])
    assert (browser.comfy.base / "input" / file).read_bytes() == path.read_bytes()
    names = [name for name, _ in browser.page.evaluate(WIDGETS, node)]
    assert names[names.index(widget) + 1] == "upload", "the button stands below what it fills"
    before = browser.page.evaluate(WIDGETS, node)
    browser.page.evaluate("() => app.loadGraphData(app.graph.serialize())")
    assert before == browser.page.evaluate(WIDGETS, node), "the button is not saved"
    assert browser.faults == []


def test_the_main_text_is_the_largest_box(fresh_browser):
    """Scene and pronunciations are one line each, and grow."""
    page = fresh_browser.page
    page.evaluate("""() => {
        app.graph.clear()
        app.graph.add(LiteGraph.createNode("HiggsTTSSpeak"))
        app.canvas.ds.reset()
    }""")
    heights = """name => app.graph._nodes[0].widgets.find(widget => widget.name === name).computedHeight"""
    page.wait_for_function(f"() => ({heights})('pronunciations') < 60")
    text, scene, before = (page.evaluate(heights, name) for name in ("text", "scene", "pronunciations"))
    assert scene == before < text / 2
    assert [label.inner_text() for label in page.locator(".higgs-line span").all()] == ["scene", "pronunciations"]
    page.evaluate(SET, ["HiggsTTSSpeak", "pronunciations", "Nguyen = Win\nSiobhan = Shivawn\nHiggs = Higgz"])
    page.evaluate("() => app.canvas.setDirty(true, true)")
    page.wait_for_function(f"least => ({heights})('pronunciations') > least", arg=before + 15)
    ends = "() => app.graph._nodes[0].widgets.at(-1).y + 24 <= app.graph._nodes[0].size[1]"
    page.wait_for_function(ends)
    assert fresh_browser.faults == []


def test_users_searches_find_the_templates(fresh_browser):
    page = fresh_browser.page
    page.get_by_test_id("side-toolbar").get_by_text("Templates").click()
    page.get_by_text("ComfyUI-Higgs-TTS").click()
    cards = page.locator("[data-testid^='template-workflow-Higgs']")
    for number in reversed(range(len(TITLES))):
        cards.nth(number).scroll_into_view_if_needed()  # else 1.41 loads no picture
        picture = cards.nth(number).locator("img").first.element_handle()
        page.wait_for_function("picture => picture.complete && picture.naturalWidth > 100", arg=picture)
    assert cards.count() == len(TITLES)
    fresh_browser.shoot("templates")
    once = ("voice", "speech", "narration", "dialogue", "subtitles", "dubbing", "lip")
    for word, count in (("higgs", len(TITLES)), ("tts", len(TITLES)), *((word, 1) for word in once)):
        page.get_by_placeholder("Search").last.fill(word)
        page.wait_for_function(
            "n => document.querySelectorAll('[data-testid^=\"template-workflow-Higgs\"]').length === n", arg=count
        )
    page.keyboard.press("Escape")


def test_the_extensions_of_the_search_are_all_our_nodes(fresh_browser):
    """With an essentials_category, a node would be listed among ComfyUI's own instead."""
    page = fresh_browser.page
    page.evaluate("() => app.extensionManager.command.execute('Workspace.SearchBox.Toggle')")
    page.get_by_role("search").get_by_text("Extensions", exact=True).last.click()  # 1.41 has a filter of this name, too
    held = fresh_browser.comfy.get("/object_info")
    page.get_by_test_id("result-item").first.wait_for()
    listed = {text.partition("\n")[0] for text in page.get_by_test_id("result-item").all_inner_texts()}
    assert {held[node]["display_name"] for node in NODES} <= listed
    page.keyboard.press("Escape")


def test_save_voice_shows_where_and_load_voice_lists_it(fresh_browser):
    browser, file = fresh_browser, "seen.safetensors"
    browser.open_template("long_narration")
    browser.page.evaluate("""() => {
        const save = LiteGraph.createNode("HiggsTTSSaveVoice")
        save.pos = [0, -300]
        app.graph.add(save)
        app.graph._nodes.find(node => node.type === "HiggsTTSLoadVoice").connect(0, save, 0)
    }""")
    browser.page.evaluate(SET, ["HiggsTTSSpeak", "text", "A short text."])
    browser.page.evaluate(SET, ["HiggsTTSSaveVoice", "name", file.removesuffix(".safetensors")])
    browser.run()
    listed = "file => LiteGraph.createNode('HiggsTTSLoadVoice').widgets[0].options.values.includes(file)"
    browser.page.wait_for_function(listed, arg=file)
    assert file in browser.value("HiggsTTSSaveVoice", "saved")
    browser.shoot("saved-voice")
    there = "() => app.graph._nodes.find(node => node.type === 'HiggsTTSLoadVoice').widgets[0].options.values"
    assert file in browser.page.evaluate(there)
    sent = browser.page.evaluate("async () => Object.values((await app.graphToPrompt()).output)")
    (node,) = [node for node in sent if node["class_type"] == "HiggsTTSSaveVoice"]
    assert set(node["inputs"]) == {"voice", "name", "overwrite"} and browser.faults == []


def test_a_speak_node_added_by_hand_has_a_sentence_and_whole_labels(fresh_browser):
    browser = fresh_browser
    cut = browser.page.evaluate(CUT_LABELS, NODES)
    browser.page.wait_for_timeout(300)
    browser.shoot("nodes")
    assert browser.value("HiggsTTSSpeak", "text").startswith("Hello!") and cut == []
    assert [fault for fault in browser.page.evaluate(FAULTS) if "too small" in fault] == []


@pytest.mark.parametrize("name", [path.stem for path in sorted(SAVED.glob("*.json"))])
def test_saved_workflows_keep_no_paragraph_gap_and_new_nodes_have_one(fresh_browser, name):
    saved = json.loads((SAVED / f"{name}.json").read_text(encoding="utf-8"))
    fresh_browser.page.evaluate("saved => app.loadGraphData(saved)", saved)
    assert fresh_browser.value("HiggsTTSSpeak", "paragraph_gap") == 0
    assert fresh_browser.value("HiggsTTSSpeak", "chunk_seconds") == 30
    fresh_browser.page.evaluate("() => { app.graph.clear(); app.graph.add(LiteGraph.createNode('HiggsTTSSpeak')) }")
    assert fresh_browser.value("HiggsTTSSpeak", "paragraph_gap") == 0.6
    again = fresh_browser.page.evaluate("() => app.graph.serialize()")
    fresh_browser.page.evaluate("saved => app.loadGraphData(saved)", again)
    assert fresh_browser.value("HiggsTTSSpeak", "paragraph_gap") == 0.6 and fresh_browser.faults == []


def test_a_node_added_after_clearing_the_workflow_has_its_own_defaults(fresh_browser):
    """In ComfyUI's frontend 1.49, Book kept the folder of an earlier Lines node with the same id."""
    folders = fresh_browser.page.evaluate(
        """types => types.map(type => {
        app.graph.clear()
        const node = LiteGraph.createNode(type)
        app.graph.add(node)
        return node.widgets.find(widget => widget.name === "folder").value
    })""",
        ["HiggsTTSLines", "HiggsTTSBook", "HiggsTTSLines"],
    )
    assert folders == ["lines", "book", "lines"]


@pytest.mark.parametrize("node", ["HiggsTTSDialogue", "HiggsTTSLines", "HiggsTTSSubtitles", "HiggsTTSBook"])
def test_voice_sockets_appear_as_voices_are_connected(fresh_browser, node):
    sockets = fresh_browser.page.evaluate(
        """node => {
        app.graph.clear()
        const made = type => { const node = LiteGraph.createNode(type); app.graph.add(node); return node }
        const scene = made(node), counts = []
        const voices = () => scene.inputs.filter(socket => socket.name.startsWith("voices"))
        for (let i = 0; i < 5; ++i) {
            counts.push(voices().length)
            made("HiggsTTSLoadVoice").connect(0, scene, scene.inputs.indexOf(voices().find(s => s.link == null)))
        }
        return [counts, voices().map(socket => socket.name)]
    }""",
        node,
    )
    counts, names = sockets
    assert counts[0] <= 2 and counts == sorted(counts) and counts[-1] >= 5, "one is always free"
    assert names[:5] == [f"voices.voice_{number}" for number in range(1, 6)]
    assert fresh_browser.faults == []


def test_a_book_shows_its_report_and_its_files(fresh_page):
    fresh_page.open_template("book")
    fresh_page.page.evaluate("""() => {
        window.listed = []
        const [book] = app.graph._nodes.filter((node) => node.type === "HiggsTTSBook")
        const button = () => book.widgets.find((widget) => widget.name === "chapters")?.element
        const look = () => listed.push(button()?.textContent)
        app.api.addEventListener("higgs_tts.chapters", look)
        app.api.addEventListener("execution_success", () => listed.push("the end"), {once: true})
    }""")
    fresh_page.run()
    listed = fresh_page.page.evaluate("() => listed")
    assert listed == ["☰ Hear 1 file", "☰ Hear 2 files", "the end"]
    fresh_page.shoot("first-book")
    report = fresh_page.page.evaluate(SHOWN, "HiggsTTSBook")
    assert "2 chapters, " in report and "02 The Lamp.flac: " in report and "Warning" not in report, report
    fresh_page.page.locator(".higgs-book").click()
    saved = fresh_page.page.locator(".higgs-chapters .higgs-save")
    assert saved.count() == 2
    address = saved.last.evaluate("link => link.href")
    assert fresh_page.page.request.get(address).body().startswith(b"fLaC")
    fresh_page.page.keyboard.press("Escape")
    assert fresh_page.page.evaluate(FAULTS) == [] and fresh_page.faults == []


def test_lines_show_their_report_and_keep_their_seed(fresh_browser):
    """Starts from the workflow in API format, which the page opens as well."""
    lines = read_workflow("lines", 100, TODAY)
    fresh_browser.page.evaluate("async lines => { await app.loadApiJson(lines, 'lines') }", lines)
    fresh_browser.run()
    report = fresh_browser.page.evaluate(SHOWN, "HiggsTTSLines")
    assert "4 spoken" in report and "shop/bye.wav, spoken" in report, report
    fresh_browser.shoot("lines")
    assert fresh_browser.value("HiggsTTSLines", "seed") == 1
    assert "control_after_generate" not in fresh_browser.page.evaluate(
        "() => app.graph._nodes.find(node => node.type === 'HiggsTTSLines').widgets.map(widget => widget.name)"
    )
    sent = fresh_browser.page.evaluate("async () => (await app.graphToPrompt()).output")
    (asked,) = [node["inputs"] for node in sent.values() if node["class_type"] == "HiggsTTSLines"]
    assert "saved" not in asked and fresh_browser.faults == []


@pytest.mark.parametrize("name", [*TITLES])
def test_templates_open_whole_and_tidy(browser, name):
    browser.open_template(name)
    browser.shoot(name)
    assert browser.page.evaluate(FAULTS) == [] and browser.faults == []


def test_speech_works_again_after_unloading(browser):
    browser.open_template("speak")
    browser.click("HiggsTTSLoadModel", widget="model")
    browser.shoot("choices")
    browser.page.locator(".litemenu-entry").get_by_text("higgs/v2").click()
    assert browser.value("HiggsTTSLoadModel", "model") == "higgs/v2"
    browser.page.evaluate(
        "app.graph._nodes.find(n => n.type === 'HiggsTTSSpeak').widgets.find(w => w.name === 'max_frames').value = 400"
    )
    titles = browser.run()
    assert any("HiggsTTSSpeak" in title and "[0%][0%]" not in title for title in titles), titles
    first, status, kind, sound = browser.player()
    browser.shoot("spoken")
    assert status == 200 and kind.startswith("audio/") and len(sound) > 10_000
    assert browser.page.locator("audio").evaluate("a => a.duration") == pytest.approx(16.0)
    assert browser.comfy.get("/higgs_probe")["open"] == 1

    browser.unload()
    browser.shoot("unloaded")
    browser.comfy.until(lambda state: state["open"] == 0 and state["loaded"] == [])

    browser.click("HiggsTTSSpeak", x=0.95, widget="seed")  # the arrow: the next seed
    assert browser.value("HiggsTTSSpeak", "seed") == 2
    browser.run()
    _, status, kind, other = browser.player(other_than=first)
    browser.shoot("spoken-again")
    assert status == 200 and kind.startswith("audio/") and len(other) > 10_000 and other != sound
    assert browser.comfy.get("/higgs_probe")["open"] == 1 and browser.faults == []


@pytest.mark.parametrize("node", NODES)
def test_the_info_button_opens_the_help_page(browser, node):
    browser.page.evaluate(
        """type => {
            app.graph.clear()
            const node = LiteGraph.createNode(type)
            node.pos = [300, 300]
            app.graph.add(node)
            app.canvas.ds.reset()
        }""",
        node,
    )
    browser.page.wait_for_timeout(300)  # until it is drawn
    browser.click(node)
    browser.page.get_by_test_id("info-button").click()
    page = browser.page.locator(".node-help-content, .markdown-content").filter(has_text="Inputs").first
    page.wait_for()
    browser.shoot(f"help-{node}")
    name = browser.comfy.get(f"/object_info/{node}")[node]["display_name"]
    assert page.locator("h1").inner_text() == name and page.locator("li").count() >= 2
    assert page.evaluate(TOO_WIDE) == [], "it is wider than the panel"
