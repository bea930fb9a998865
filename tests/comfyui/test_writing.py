"""Writing a text: completion, the menu of tags, underlines, seconds, in both renderers."""

from __future__ import annotations

import json

import pytest
from higgs_tts.tests.templates import TITLES

from .server import TODAY
from .test_browser import VALUE, open_browser  # noqa: F401 - a fixture

LOAD = "saved => app.loadGraphData(saved)"
AREA = """type => {
    const node = app.graph._nodes.find((node) => node.type === type)
    const own = node.widgets.find((widget) => ["text", "script"].includes(widget.name))
    const drawn = document.querySelector(`[data-node-id="${node.id}"] textarea`)
    return drawn ?? own.element
}"""
# Vertical distance of the underline from the line that it belongs to, by the text area's own layout.
MARKED = """() => [...document.querySelectorAll(".higgs-mirror mark")].map((mark) => {
    const box = mark.getBoundingClientRect()
    const area = document.activeElement.getBoundingClientRect()
    return [mark.textContent, box.left >= area.left, box.right <= area.right, box.top >= area.top]
})"""


class Writer:
    """A page on which a user types into a node."""

    def __init__(self, browser, vue):
        self.browser, self.page, self.vue = browser, browser.page, vue

    def open(self, template="speak", node="HiggsTTSSpeak"):
        saved = json.loads((TODAY / f"{TITLES[template]}.json").read_text(encoding="utf-8"))
        self.page.evaluate(LOAD, saved)
        self.page.wait_for_timeout(500)
        self.node = node
        self.area = self.page.evaluate_handle(AREA, node).as_element()

    def write(self, text):
        """Type a text, replacing all others."""
        self.area.click()
        self.area.select_text()
        self.page.keyboard.type(text)

    def value(self, widget="text"):
        return self.browser.value(self.node, widget)

    def until(self, value, widget="text"):
        self.page.wait_for_function(
            f"([node, widget, value]) => ({VALUE})([node, widget]) === value", arg=[self.node, widget, value]
        )

    @property
    def options(self):
        return self.page.get_by_role("option")

    def shoot(self, name):
        self.browser.shoot(f"{name}-{'nodes2' if self.vue else 'canvas'}")


@pytest.fixture(scope="module", params=[False, True], ids=["canvas", "nodes2"])
def writer(request, open_browser, make_bare):  # noqa: F811
    browser = open_browser(make_bare(page=True), Comfy_VueNodes_Enabled=request.param)
    yield Writer(browser, request.param)
    browser.page.close()


def test_the_keyboard_and_the_mouse_complete_tags(writer):
    writer.open()
    writer.write("Well <|speed_")
    writer.options.first.wait_for()
    assert writer.options.all_inner_texts()[:2] == ["prosody:speed_very_slow", "prosody:speed_slow"]
    writer.shoot("completion")
    assert writer.area.get_attribute("aria-activedescendant") == writer.options.first.get_attribute("id")
    writer.page.keyboard.press("ArrowDown")
    writer.page.keyboard.press("Enter")
    assert writer.value() == "Well <|prosody:speed_slow|>" and writer.options.count() == 0
    writer.page.keyboard.type(" and [pau")
    writer.options.last.click()
    writer.page.keyboard.type(" on")
    assert writer.value() == "Well <|prosody:speed_slow|> and [pause 1.5] on"
    writer.page.keyboard.press("Control+Z")
    writer.page.keyboard.type(" <|")
    writer.options.first.wait_for()
    writer.page.keyboard.press("Escape")
    assert writer.options.count() == 0 and writer.page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    assert writer.browser.faults == []


def test_the_menu_groups_tags_and_greys_those_without_effect(writer):
    writer.open()
    writer.write("Hello there")
    writer.page.keyboard.press("Control+Home")
    writer.page.get_by_role("button", name="Tags").click()
    groups = writer.page.locator(".higgs-menu [role=group]")
    groups.first.wait_for()
    assert groups.locator(".higgs-heading").all_inner_texts() == ["emotion", "style", "prosody", "sfx", "pause"]
    awe = writer.options.get_by_text("awe", exact=True)
    awe.hover()
    assert awe.get_attribute("aria-disabled") == "true"
    assert "has not learned" in writer.page.locator(".higgs-note").inner_text()
    writer.shoot("menu")
    writer.options.get_by_text("speed fast", exact=True).click()
    assert writer.value() == "<|prosody:speed_fast|>Hello there"
    writer.page.keyboard.press("Control+Space")
    groups.first.wait_for()
    writer.page.keyboard.press("Escape")
    assert groups.count() == 0 and writer.browser.faults == []


def test_a_turn_has_a_manner_from_a_menu(writer):
    writer.open("dialogue", "HiggsTTSDialogue")
    writer.write("Anna: Hello.\nTom: Who is there?")
    writer.page.get_by_role("button", name="Manner").click()
    headings = writer.page.locator(".higgs-menu .higgs-heading")
    headings.nth(3).wait_for()
    assert headings.all_inner_texts() == ["emotion", "style", "prosody", "volume"]
    writer.shoot("manner")
    writer.options.get_by_text("speed slow", exact=True).click()
    writer.until("Anna: Hello.\nTom: <|prosody:speed_slow|>Who is there?", "script")
    writer.page.keyboard.press("Control+Shift+Space")
    writer.options.get_by_text("-6 dB", exact=True).click()
    writer.until("Anna: Hello.\n[Tom|volume:-6dB] <|prosody:speed_slow|>Who is there?", "script")
    writer.page.keyboard.press("Control+Z")
    assert writer.value("script") == "Anna: Hello.\nTom: <|prosody:speed_slow|>Who is there?"
    assert writer.browser.faults == []


def hold(page, name):
    """Hold the answers of a route. Returns a function that lets the server answer."""
    held, address = [], f"**/higgs_tts/{name}*"

    def release():
        page.unroute(address)
        for route in held:
            route.continue_()

    page.route(address, lambda route: held.append(route))
    return release


def test_a_menu_waits_for_a_slow_server(writer):
    tell_tags, tell_text = hold(writer.page, "tags"), hold(writer.page, "text")
    writer.open("dialogue", "HiggsTTSDialogue")
    writer.write("Zoe: Hello.")
    writer.page.get_by_role("button", name="Manner").click()
    headings = writer.page.locator(".higgs-menu .higgs-heading")
    headings.first.wait_for()
    assert headings.all_inner_texts() == ["volume"]
    tell_tags()
    headings.nth(3).wait_for()
    assert headings.all_inner_texts() == ["emotion", "style", "prosody", "volume"]
    writer.options.get_by_text("speed slow", exact=True).click()
    headings.first.wait_for(state="detached")
    assert writer.value("script") == "Zoe: Hello."
    tell_text()
    writer.until("Zoe: <|prosody:speed_slow|>Hello.", "script")
    assert writer.browser.faults == []


def test_problems_are_underlined_with_reasons_and_the_length_is_shown(writer):
    writer.open()
    writer.write("The train leaves at half past seven. <|emotion:hapy|> I am on it, and [laughs] nobody else is.")
    writer.page.wait_for_function("() => document.querySelectorAll('.higgs-mirror mark').length === 2")
    marked = writer.page.evaluate(MARKED)
    assert [mark[0] for mark in marked] == ["<|emotion:hapy|>", "[laughs]"] and all(all(mark[1:]) for mark in marked)
    bar = writer.page.locator(".higgs-text-bar")
    assert "Unknown tag <|emotion:hapy|> was left out" in bar.inner_text() and "about " in bar.inner_text()
    writer.shoot("hint")
    bar.locator(".higgs-hint").click()
    bar.locator(".higgs-hint").click()
    assert "[laughs]" in bar.inner_text()
    writer.page.keyboard.type("haha")
    writer.page.wait_for_function("() => document.querySelectorAll('.higgs-mirror mark').length === 1")
    assert "and haha nobody" in writer.value()
    writer.page.mouse.click(800, 950)
    bar.wait_for(state="detached")
    assert writer.page.locator(".higgs-mirror").count() == 0 and writer.browser.faults == []


def test_speakers_are_completed_and_enter_adds_a_line(writer):
    writer.open("dialogue", "HiggsTTSDialogue")
    writer.write("Anna: Did you hear that?\nTom: Hear what?\n")
    writer.page.wait_for_timeout(600)
    writer.page.keyboard.type("An")
    writer.options.first.wait_for()
    assert writer.options.first.inner_text() == "Anna"
    writer.shoot("speaker")
    writer.page.keyboard.press("Tab")
    writer.page.keyboard.type("There.\n[oli")
    writer.options.first.wait_for()
    assert writer.options.first.inner_text() == "[oliver]"
    writer.page.keyboard.press("Enter")
    writer.page.keyboard.type("Yes.\nTo")
    writer.options.first.wait_for()
    writer.page.keyboard.press("Enter")
    assert writer.value("script").endswith("\nAnna: There.\n[oliver] Yes.\nTo\n")
    assert writer.browser.faults == []
