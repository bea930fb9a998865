"""Templates and blueprints on ComfyUI's page in its language: names, titles and notes, in both renderers."""

from __future__ import annotations

import json

import pytest
from higgs_tts.tests.templates import TITLES
from higgs_tts.tests.translations import TEMPLATES

from .server import TODAY
from .test_browser import open_browser  # noqa: F401 - a fixture
from .test_languages import ADD, LOAD, LOCALE, TITLED, german_as_french, reload, words

BROWSE = "() => app.extensionManager.command.execute('Comfy.BrowseTemplates')"
TAB = "name => app.extensionManager.workflow.activeWorkflow.filename.startsWith(name)"  # a second one is numbered
NOTE = "() => app.graph._nodes.find(node => node.type === 'MarkdownNote')?.widgets[0].value"
VOICE = "Higgs Voice: first choose or record a clip"
# Changes the language and waits until ComfyUI has opened the graph anew, which takes a slow server's node definitions.
SWITCH = """async language => {
    const { setting } = app.extensionManager, { loadGraphData } = app
    if (setting.get("Comfy.Locale") === language) return
    await new Promise(opened => {
        app.loadGraphData = async (...given) => {
            app.loadGraphData = loadGraphData
            await app.loadGraphData(...given)
            opened()
        }
        setting.set("Comfy.Locale", language)
    })
}"""
CHANGE = """() => {
    const [note, voice] = ["MarkdownNote", "HiggsTTSVoice"].map(type => app.graph._nodes.find(n => n.type === type))
    note.widgets[0].value += "\\nMine."
    voice.title = "Mine"
}"""


def told(language, text):
    """Return a text of a template in a language, each of its lines."""
    known = words(language, *TEMPLATES) if language != "en" else {}
    return "\n".join(known.get(line, line) for line in text.split("\n"))


def template(name="clone_voice"):
    return json.loads((TODAY / f"{TITLES[name]}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def browser(open_browser, start_comfy):  # noqa: F811
    return open_browser(start_comfy(page=True))


@pytest.fixture(params=[False, True], ids=["canvas", "nodes2"])
def page(browser, request):
    browser.page.evaluate("on => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)", request.param)
    return browser.page


def speak(page, language):
    """Load the page in a language. ComfyUI offers no German yet."""
    page.unroute("**/i18n")
    if language == "de":
        page.route("**/i18n", german_as_french)
    page.evaluate(LOCALE, "fr" if language == "de" else language)
    reload(page, language)
    page.wait_for_function("() => app.graph._nodes.length > 0")  # as it was


@pytest.mark.parametrize("language", ["de", "ja"])
def test_a_template_is_in_the_language(browser, page, language):
    speak(page, language)
    name = told(language, TITLES["clone_voice"])
    page.evaluate(BROWSE)
    page.get_by_text("ComfyUI-Higgs-TTS").click()
    card = page.get_by_test_id(f"template-workflow-{name}")
    card.get_by_text(name).first.wait_for()
    card.locator("img").first.wait_for()
    assert card.locator("img").first.evaluate("async image => { await image.decode(); return image.naturalWidth }") > 0
    card.click()
    page.wait_for_function(TITLED, arg=told(language, VOICE))
    page.get_by_test_id("dialog-overlay").wait_for(state="detached")
    page.wait_for_function(TAB, arg=name)
    (note,) = [node["widgets_values"][0] for node in template()["nodes"] if node["type"] == "MarkdownNote"]
    assert page.evaluate(NOTE) == told(language, note) != note
    heading = told(language, note).split("\n")[0].removeprefix("# ")
    page.locator("h1", has_text=heading).wait_for()
    if page.locator("[data-node-id]").count():
        page.locator("[data-node-id]", has_text=told(language, VOICE)).first.wait_for()
    browser.shoot(f"template-{language}")
    saved = page.evaluate("() => app.graph.serialize()")
    for other in ("zh", "en"):  # what was saved in one language opens in another
        page.evaluate(SWITCH, other)
        page.evaluate(LOAD, saved)
        page.wait_for_function(TITLED, arg=told(other, VOICE))
        assert page.evaluate(NOTE) == told(other, note)
    assert browser.faults == []


def test_what_a_user_has_changed_stays(browser, page):
    speak(page, "ja")
    page.evaluate(LOAD, template())
    page.wait_for_function(TITLED, arg=told("ja", VOICE))
    page.evaluate(CHANGE)
    mine = page.evaluate(NOTE)
    assert mine.startswith(told("ja", "# Speak with your own voice")) and mine.endswith("Mine.")
    saved = page.evaluate("() => app.graph.serialize()")
    page.evaluate(SWITCH, "zh")
    page.evaluate(LOAD, saved)
    page.wait_for_function(TITLED, arg="Mine")
    page.wait_for_timeout(500)
    assert page.evaluate(NOTE) == mine and page.evaluate(TITLED, "Mine")
    assert browser.faults == []


def test_an_english_page_changes_nothing(browser, page):
    page.evaluate(SWITCH, "en")
    for name in TITLES:
        saved = template(name)
        page.evaluate(LOAD, saved)
        titles = {node["id"]: node["title"] for node in saved["nodes"] if "title" in node}
        notes = [node["widgets_values"][0] for node in saved["nodes"] if node["type"] == "MarkdownNote"]
        held = page.evaluate("() => app.graph.serialize().nodes")
        assert {node["id"]: node["title"] for node in held if node["id"] in titles} == titles
        assert [node["widgets_values"][0] for node in held if node["type"] == "MarkdownNote"] == notes
    assert browser.faults == []


def test_a_blueprint_has_its_title_in_the_language(browser, page):
    page.evaluate(SWITCH, "ja")
    page.evaluate("() => app.graph.clear()")
    page.wait_for_timeout(500)
    page.evaluate(ADD)
    page.wait_for_function("() => document.activeElement?.tagName === 'INPUT'")
    page.keyboard.type("Higgs TTS - Narrate a Text")
    page.locator("#result-item-0", has_text="Higgs TTS - Narrate a Text").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.activeElement?.tagName !== 'INPUT'")
    page.mouse.click(500, 400)
    page.wait_for_function(TITLED, arg=told("ja", "Higgs TTS - Narrate a Text"))
    assert browser.faults == []
