"""ComfyUI in other languages: our nodes, their help, and the words of our scripts. Blueprints in both renderers."""

from __future__ import annotations

import json

import pytest
from higgs_tts.tests.templates import TITLES

from .server import ROOT, TODAY
from .test_browser import CUT_LABELS, NODES, SHOWN, open_browser  # noqa: F401 - a fixture

LOCALE = "language => app.extensionManager.setting.set('Comfy.Locale', language)"
# ComfyUI takes a language up when its messages have been loaded, even if another was chosen meanwhile.
TAKEN_UP = """language =>
    document.querySelector("#vue-app").__vue_app__.config.globalProperties.$i18n.locale === language"""
LOAD = "saved => app.loadGraphData(saved)"
NAMED = "([type, name]) => LiteGraph.createNode(type).title === name"
LABELS = """type => Object.fromEntries(
    app.graph._nodes.find(node => node.type === type).widgets.map(widget => [widget.name, widget.label]))"""
# Sets a widget of the first node that has it, also inside a blueprint.
SET = """([name, value]) => {
    const nodes = app.graph._nodes.flatMap(node => [node, ...(node.subgraph?.nodes ?? [])])
    nodes.flatMap(node => node.widgets ?? []).find(widget => widget.name === name).value = value
}"""
SHORT = ["max_frames", 40]
SHOWN_OPTIONS = """() => app.graph._nodes.find(node => node.type === "HiggsTTSLoadModel").widgets.map(
    widget => [widget.name, widget._displayValue])"""
SAID = "text => document.querySelector('.higgs-says')?.textContent === text"
ADD = "() => app.extensionManager.command.execute('Workspace.SearchBox.Toggle')"
# Connects a blueprint's sound and info, and LoadAudio to its input for a clip.
CONNECT = """clip => {
    const [box] = app.graph._nodes
    const made = type => { const node = LiteGraph.createNode(type); app.graph.add(node); return node }
    box.connect(box.outputs.findIndex(output => output.name === "audio"), made("PreviewAudio"), 0)
    box.connect(box.outputs.findIndex(output => output.name === "info"), made("PreviewAny"), 0)
    if (!clip) return
    const load = made("LoadAudio")
    load.widgets[0].value = "reference.wav"
    load.connect(0, box, box.inputs.findIndex(input => input.name === "clip"))
}"""
VOICE = """() => {
    app.graph.clear()
    app.graph.add(LiteGraph.createNode("HiggsTTSVoice"))
}"""
TITLED = "title => app.graph._nodes.some(node => node.title === title)"
LABELLED = "label => app.graph._nodes[0]?.inputs.some(input => input.label === label)"
BLUEPRINTS = ["Narrate a Text", "Dialogue of Two", "Dub a Film", "Clone a Voice"]


# Connects a voice to Higgs Dialogue, which then has a second socket.
DIALOGUE = """() => {
    app.graph.clear()
    const [dialogue, voice] = ["HiggsTTSDialogue", "HiggsTTSLoadVoice"].map(type => LiteGraph.createNode(type))
    for (const node of [dialogue, voice]) app.graph.add(node)
    voice.connect(0, dialogue, dialogue.inputs.findIndex(input => input.name === "voices.voice_1"))
}"""
VOICES = """() => app.graph._nodes.find(node => node.type === "HiggsTTSDialogue")?.inputs
    .filter(input => input.name.startsWith("voices.")).map(input => input.label).slice(0, 2)"""
# Renames the first socket, then saves the workflow and opens it again.
RENAME = """async () => {
    const {inputs} = app.graph._nodes.find(node => node.type === "HiggsTTSDialogue")
    inputs.find(input => input.name === "voices.voice_1").label = "Anna"
    await app.loadGraphData(app.graph.serialize())
}"""


def words(language, file, *keys):
    """Return what locales/ has at a place."""
    held = json.loads((ROOT / "locales" / language / f"{file}.json").read_text(encoding="utf-8"))
    for key in keys:
        held = held[key]
    return held


def nodes(language, *keys):
    return words(language, "nodeDefs", *keys)


def said(language, english, section="page"):
    return words(language, "main", "higgsTTS", section, english)


def speak_template():
    return json.loads((TODAY / f"{TITLES['speak']}.json").read_text(encoding="utf-8"))


def reload(page, language):
    """Load the page again, and wait for the language's names. ComfyUI opens a graph anew some time after a change."""
    page.reload()
    page.wait_for_function(
        "name => window.app?.canvas && LiteGraph.createNode('HiggsTTSBook')?.title === name",
        arg=nodes(language, "HiggsTTSBook", "display_name"),
    )


@pytest.fixture(scope="module")
def chinese(open_browser, start_comfy):  # noqa: F811
    """ComfyUI's page in Chinese from the start."""
    return open_browser(start_comfy(page=True), Comfy_Locale="zh")


@pytest.mark.parametrize("vue", [False, True], ids=["canvas", "nodes2"])
def test_nodes_and_the_player_speak_the_language_of_the_page(chinese, vue):
    page, seed = chinese.page, 1 + vue  # another seed: else nothing is spoken anew
    page.evaluate("on => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)", vue)
    page.evaluate(LOAD, speak_template())
    page.evaluate(SET, ["seed", seed])
    page.evaluate(SET, SHORT)
    speak = nodes("zh", "HiggsTTSSpeak")
    assert page.evaluate(NAMED, ["HiggsTTSSpeak", speak["display_name"]])
    labels = page.evaluate(LABELS, "HiggsTTSSpeak")
    assert {name: labels[name] for name in ("seed", "max_frames")} == {
        name: speak["inputs"][name]["name"] for name in ("seed", "max_frames")
    }
    chinese.run()
    page.wait_for_function(SAID, arg=said("zh", "Seed {seed}.").replace("{seed}", str(seed)))
    assert page.locator(".higgs-volume").get_attribute("title") == said("zh", "Volume")
    page.locator(".higgs-open-takes").click()
    assert page.locator(".higgs-takes").get_attribute("aria-label") == said("zh", "Latest runs of this node")
    assert said("zh", "seed {seed}").replace("{seed}", str(seed)) in page.locator(".higgs-takes").inner_text()
    page.keyboard.press("Escape")
    chinese.shoot(f"chinese-{vue}")
    assert chinese.faults == []


def test_options_text_boxes_and_writing_are_translated(chinese):
    page = chinese.page
    page.evaluate("() => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', false)")
    page.evaluate(LOAD, speak_template())
    shown = dict(page.evaluate(SHOWN_OPTIONS))
    assert shown["model"] == shown["dtype"] == said("zh", "auto", "server")
    sent = page.evaluate("async () => Object.values((await app.graphToPrompt()).output)")
    assert [node["inputs"]["model"] for node in sent if node["class_type"] == "HiggsTTSLoadModel"] == ["auto"]
    area = page.evaluate_handle(
        "() => app.graph._nodes.find(n => n.type === 'HiggsTTSSpeak').widgets.find(w => w.name === 'text').element"
    ).as_element()
    tooltip = nodes("zh", "HiggsTTSSpeak", "inputs", "text", "tooltip")
    page.wait_for_function("([area, tip]) => area.parentElement?.title === tip", arg=[area, tooltip])
    area.click()
    area.select_text()
    page.keyboard.type("It is [laughs] late.")
    hint = said("zh", "{words} is read aloud. Write {sound} instead.", "server").replace("{words}", '"[laughs]"')
    page.locator(".higgs-hint", has_text=hint.partition("{sound}")[0]).wait_for()
    page.keyboard.press("Control+Space")
    headings = [said("zh", kind, "server") for kind in ("emotion", "style", "prosody", "sfx", "pause")]
    assert page.locator(".higgs-menu .higgs-heading").all_inner_texts() == headings
    page.keyboard.press("Escape")
    chinese.shoot("chinese-writing")
    assert chinese.faults == []


def test_help_is_in_the_language_of_the_page(chinese):
    for language, word in (("zh", "输入"), ("ja", "入力"), ("fr", None)):
        address = f"/extensions/ComfyUI-Higgs-TTS/docs/HiggsTTSSpeak/{language}.md"
        answer = chinese.page.request.get(f"http://127.0.0.1:{chinese.comfy.port}{address}")
        assert answer.status == (200 if word else 404)
        assert word is None or f"## {word}" in answer.text()


def test_a_change_of_language_is_followed_at_once(chinese):
    """Names of nodes and inputs follow once ComfyUI has loaded the language's messages, as with its own nodes."""
    page = chinese.page
    page.evaluate(LOAD, speak_template())
    page.evaluate(SET, ["seed", 7])
    page.evaluate(SET, SHORT)
    chinese.run()
    for language in ("ja", "fr", "zh"):
        page.evaluate(LOCALE, language)
        auto = said(language, "auto", "server")
        page.wait_for_function(f"auto => Object.fromEntries(({SHOWN_OPTIONS})()).model === auto", arg=auto)
        volume = said(language, "Volume")
        page.wait_for_function("title => document.querySelector('.higgs-volume')?.title === title", arg=volume)
        page.wait_for_function(TAKEN_UP, arg=language)
    seed = nodes("zh", "HiggsTTSSpeak", "inputs", "seed", "name")
    page.wait_for_function(f"name => ({LABELS})('HiggsTTSSpeak').seed === name", arg=seed)
    assert chinese.faults == []


def test_voice_sockets_are_named_in_the_language_unless_the_user_has_named_them(chinese):
    page = chinese.page
    reload(page, "zh")
    page.wait_for_function("() => app.graph._nodes.some(node => node.type === 'HiggsTTSSpeak')")  # as it was
    page.evaluate(DIALOGUE)
    chinese_names = [said("zh", "voice_{number}").replace("{number}", str(number)) for number in (1, 2)]
    page.wait_for_function(f"names => `${{({VOICES})()}}` === `${{names}}`", arg=chinese_names)
    page.evaluate(RENAME)
    page.wait_for_function(f"names => `${{({VOICES})()}}` === `${{names}}`", arg=["Anna", chinese_names[1]])
    page.evaluate(LOCALE, "ja")
    japanese = said("ja", "voice_{number}").replace("{number}", "2")
    page.wait_for_function(f"names => `${{({VOICES})()}}` === `${{names}}`", arg=["Anna", japanese])
    assert chinese.faults == []


def test_what_a_template_needs_is_said_in_the_language(chinese):
    page, clone = chinese.page, ROOT / "subgraphs" / "Higgs TTS - Clone a Voice.json"
    page.evaluate(LOCALE, "zh")
    reload(page, "zh")
    page.wait_for_function("() => app.graph._nodes.length > 0")  # as it was
    page.evaluate(LOAD, json.loads(clone.read_text(encoding="utf-8")))
    page.wait_for_function(LABELLED, arg=said("zh", "clip: connect Load Audio", "templates"))
    page.evaluate(VOICE)
    page.wait_for_function(LABELLED, arg=said("zh", "audio_{number}").replace("{number}", "2"))
    for title, template in (
        ("Higgs Load LoRA: first put one into models/loras", "lora"),
        ("Higgs Voice: first choose or record a clip", "clone_voice"),
        ("Higgs TTS Server: first start the server", "server"),
    ):
        page.evaluate(LOAD, json.loads((TODAY / f"{TITLES[template]}.json").read_text(encoding="utf-8")))
        page.wait_for_function(TITLED, arg=said("zh", title, "templates"))
        chinese.shoot(f"needs-{template}-zh")
    page.evaluate(LOCALE, "ja")  # a title is saved in the language in which it was shown
    page.wait_for_function(TITLED, arg=said("ja", title, "templates"))
    assert chinese.faults == []


def german_as_french(route):
    """Answer with our German in place of French, since ComfyUI offers no German yet."""
    answer = route.fetch()
    held = answer.json()
    route.fulfill(response=answer, json={**held, "fr": held["de"]})


@pytest.mark.parametrize("language", ["ja", "ko", "fr", "es", "pt-BR", "ru", "zh-TW", "de"])
def test_labels_fit_in_every_language(chinese, language):
    page = chinese.page
    if language == "de":
        page.route("**/i18n", german_as_french)
    page.evaluate(LOCALE, "fr" if language == "de" else language)
    reload(page, language)
    cut = page.evaluate(CUT_LABELS, NODES)
    page.wait_for_timeout(300)
    chinese.shoot(f"nodes-{language}")
    assert cut == [] and chinese.faults == []


@pytest.fixture(scope="module")
def english(open_browser, start_comfy):  # noqa: F811
    comfy = start_comfy(page=True)
    (comfy.base / "models" / "voices" / "anna.wav").unlink()  # else the script means this voice, and Tom has none
    return open_browser(comfy)


@pytest.mark.parametrize("vue", [False, True], ids=["canvas", "nodes2"])
@pytest.mark.parametrize("name", BLUEPRINTS)
def test_a_blueprint_is_found_by_its_name_and_speaks(english, name, vue):
    page = english.page
    page.evaluate("on => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)", vue)
    page.evaluate("() => app.graph.clear()")
    page.wait_for_timeout(500)
    page.evaluate(ADD)
    page.wait_for_function("() => document.activeElement?.tagName === 'INPUT'")
    page.keyboard.type(f"Higgs TTS - {name}")
    page.locator("#result-item-0", has_text=f"Higgs TTS - {name}").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement?.tagName !== 'INPUT'")
    page.mouse.click(500, 400)  # where it is put down
    page.wait_for_function("title => app.graph._nodes[0]?.title === title", arg=f"Higgs TTS - {name}")
    page.evaluate(CONNECT, name == "Clone a Voice")
    page.evaluate(SET, ["seed", 5 + vue])
    page.evaluate(SET, SHORT)
    english.shoot(f"{name}-{vue}")
    english.run()
    assert "Model: higgs" in page.evaluate(SHOWN, "PreviewAny")
    assert english.faults == []
