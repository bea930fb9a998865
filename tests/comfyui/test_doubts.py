"""Doubtful words on the page: underlined, with the reason, and a sentence taken again while the rest stays."""

from __future__ import annotations

import numpy as np
import pytest

from .listening import compare, dumped, samples_of
from .test_browser import SET, VALUE, open_browser  # noqa: F401 - a fixture
from .test_live import WATCH, open_listener  # noqa: F401 - a fixture
from .test_spoken_text import RATE, WORDS

TEXT = "One apple is on the table. Two pears are in the bowl. Three plums fell on the floor. Four nuts are left."
REASON = "This is said again."
MARGIN = RATE // 2  # samples beside a sentence that a retake may change: the pause, and the codec's reach
# Types into a widget as its user does.
WRITE = """([type, name, value]) => {
    const widget = app.graph._nodes.find((node) => node.type === type).widgets.find((entry) => entry.name === name)
    widget.value = value
    widget.callback?.(value)
}"""


@pytest.fixture(scope="module", params=[False, True], ids=["canvas", "nodes2"])
def spoken(request, open_listener):  # noqa: F811
    """A page that has played four sentences, of whose second one two words are in doubt."""
    listener = open_listener(Comfy_VueNodes_Enabled=request.param)
    listener.open(text=TEXT)
    listener.comfy.get("/higgs_probe/doubt?kind=again&sentence=1&first=6&stop=8")
    listener.start()
    listener.until_done()
    listener.until("ended")
    listener.words = listener.page.evaluate(WORDS)
    yield listener
    assert listener.browser.faults == []


def value(listener, name):
    return listener.page.evaluate(VALUE, ["HiggsTTSSpeak", name])


def start_of(listener, sentence):
    """Return the sample at which a sentence starts."""
    return round(next(word["start"] for word in listener.words if word["sentence"] == sentence) * RATE)


def open_box(listener, word):
    """Play from a word, pause, and press ↻."""
    listener.page.locator(".higgs-word").nth(word).click()
    listener.until("playing")
    listener.page.locator(".higgs-play").click()
    listener.page.locator(".higgs-open-again").click()


def take_again(listener):
    """Press the button of the open box, and return the node's output [n] once the sentence was heard."""
    page = listener.page
    page.evaluate(WATCH)
    page.locator(".higgs-again").click()
    page.evaluate("() => heard.reset()")  # of the sound until then
    assert page.locator(".higgs-word-box").count() == 0
    listener.until_done()
    listener.until("playing")
    listener.until("ended")
    listener.words = page.evaluate(WORDS)
    return samples_of(listener.comfy)


def assert_rest_is_kept(listener, before, after, sentence):
    """Check that only a sentence has changed from one sound to the other. listener: has the words of the second."""
    start = start_of(listener, sentence) - MARGIN
    rest = len(after) - start_of(listener, sentence + 1) - MARGIN
    assert start > 0 and rest > 0 and not np.array_equal(before, after)
    for part in (slice(None, start), slice(-rest, None)):
        assert np.abs(before[part].astype(int) - after[part]).max() <= 1


def test_doubtful_words_are_underlined_and_say_why(spoken):
    doubtful = spoken.page.locator(".higgs-doubt")
    assert doubtful.all_inner_texts() == ["Two", "pears"]
    assert [word.get_attribute("title") for word in doubtful.all()] == [REASON] * 2
    assert spoken.page.locator(".higgs-word[title]").count() == 2, "others have the text's tooltip"
    style = "word => getComputedStyle(word).textDecorationLine"
    assert doubtful.first.evaluate(style) == "underline"
    assert spoken.page.locator(".higgs-word").first.evaluate(style) == "none"


def test_a_click_on_a_doubtful_word_plays_from_it_and_opens_its_box(spoken):
    page = spoken.page
    page.evaluate("() => heard.reset()")
    page.locator(".higgs-doubt").nth(1).click()
    box = page.locator(".higgs-word-box")
    assert box.locator(".higgs-reason").inner_text() == REASON
    assert box.locator(".higgs-sentence").inner_text() == "Two pears are in the bowl."
    assert box.locator("button").inner_text() == "Take this sentence again"
    spoken.until("playing")
    spoken.browser.shoot("doubt")
    spoken.until("ended")
    heard, said = spoken.heard(), dumped(spoken.comfy, round(spoken.words[7]["start"] * RATE))
    assert compare(heard, said)[1], f"{len(heard)} samples instead of {len(said)}"
    page.keyboard.press("Escape")
    assert box.count() == 0


def test_a_click_on_another_word_opens_no_box(spoken):
    spoken.page.locator(".higgs-word").nth(1).click()
    spoken.until("playing")
    assert spoken.page.locator(".higgs-word-box").count() == 0
    spoken.until("ended")


def test_a_sentence_is_taken_again_and_the_rest_stays(spoken):
    """The new sound plays from the sentence. A second retake counts on, and another sentence keeps the first one's."""
    page = spoken.page
    page.evaluate(SET, ["HiggsTTSSpeak", "control_after_generate", "randomize"])
    before, seed = samples_of(spoken.comfy), page.evaluate("runs.at(-1).seed")
    page.locator(".higgs-word[tabindex]").focus()
    for key in ("Home", *["ArrowRight"] * 6, "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.className") == "higgs-again"
    once = take_again(spoken)
    assert (value(spoken, "retakes"), value(spoken, "seed")) == ("2:1", seed)
    assert value(spoken, "control_after_generate") == "fixed"
    assert_rest_is_kept(spoken, before, once, 2)
    assert compare(spoken.heard(), dumped(spoken.comfy, start_of(spoken, 2)))[1]
    marked = {word["word"] for word in spoken.words if word.get("doubt") == "again"}
    assert not marked & {"Two", "pears"}

    open_box(spoken, 7)
    twice = take_again(spoken)
    assert value(spoken, "retakes") == "2:2"
    assert_rest_is_kept(spoken, once, twice, 2)

    open_box(spoken, 20)
    assert page.locator(".higgs-sentence").inner_text() == "Four nuts are left."
    both = take_again(spoken)
    assert value(spoken, "retakes") == "2:2, 4:1"
    start = start_of(spoken, 4) - MARGIN
    assert np.abs(twice[:start].astype(int) - both[:start]).max() <= 1 and not np.array_equal(twice, both)


def test_an_earlier_run_is_kept_with_its_retakes(spoken):
    page = spoken.page
    page.locator(".higgs-open-takes").click()
    names = page.locator(".higgs-takes .higgs-name").all_inner_texts()
    assert [name.split(" · ")[1:-1] for name in names] == [["↻ 2:2, 4:1"], ["↻ 2:2"], ["↻ 2:1"], []]
    page.locator(".higgs-takes .higgs-keep").nth(2).click()
    assert value(spoken, "retakes") == "2:1"
    page.keyboard.press("Escape")


def test_retakes_of_another_text_are_not_kept(spoken):
    page, seed = spoken.page, value(spoken, "seed")
    page.evaluate(WRITE, ["HiggsTTSSpeak", "text", TEXT.partition(" ")[2]])
    page.evaluate(WRITE, ["HiggsTTSSpeak", "seed", seed + 1])
    page.locator(".higgs-open-takes").click()
    page.locator(".higgs-takes .higgs-keep").nth(1).click()
    page.keyboard.press("Escape")
    assert (value(spoken, "seed"), value(spoken, "retakes")) == (seed, "")
    page.evaluate(WRITE, ["HiggsTTSSpeak", "text", TEXT])


def test_another_text_or_seed_has_no_retakes(spoken):
    page = spoken.page
    page.evaluate(WRITE, ["HiggsTTSSpeak", "retakes", "1:1"])
    page.evaluate(
        "text => [...document.querySelectorAll('textarea')].find(({ value }) => value === text).focus()", TEXT
    )
    page.keyboard.press("End")
    assert value(spoken, "retakes") == "1:1"
    page.keyboard.type(" A")
    page.wait_for_function(f"text => ({VALUE})(['HiggsTTSSpeak', 'text']) === text", arg=f"{TEXT} A")
    assert value(spoken, "retakes") == ""

    page.evaluate(WRITE, ["HiggsTTSSpeak", "retakes", "1:1"])
    page.evaluate(WRITE, ["HiggsTTSSpeak", "control_after_generate", "randomize"])
    seed = value(spoken, "seed")
    spoken.start()
    spoken.until_done()
    assert page.evaluate("runs.at(-1).retakes") == "1:1" and value(spoken, "seed") != seed
    assert value(spoken, "retakes") == ""


def test_no_sentence_of_another_text_is_taken_again(spoken):
    page, text = spoken.page, value(spoken, "text")
    page.evaluate(WRITE, ["HiggsTTSSpeak", "text", text.partition(". ")[2]])
    open_box(spoken, 7)
    assert page.locator(".higgs-again").is_disabled()
    assert page.locator(".higgs-again").get_attribute("title") == "The text has changed. Run the node again."
    page.keyboard.press("Escape")
    page.evaluate(WRITE, ["HiggsTTSSpeak", "text", text])
    page.locator(".higgs-open-again").click()
    assert page.locator(".higgs-again").is_enabled()
    page.keyboard.press("Escape")


def test_a_later_run_with_the_same_retakes_is_heard_from_its_start(spoken):
    open_box(spoken, 7)
    take_again(spoken)
    spoken.page.evaluate(WRITE, ["HiggsTTSSpeak", "temperature", 0.7])  # ComfyUI runs nothing twice
    spoken.start()
    spoken.until_done()
    spoken.until("ended")
    assert compare(spoken.heard(), spoken.said())[1]


def test_no_sentence_of_a_list_of_texts_is_taken_again(spoken):
    page = spoken.page
    page.evaluate("""() => {
        const lines = LiteGraph.createNode("HiggsProbeLines")
        lines.pos = [1000, 1200]
        app.graph.add(lines)
        lines.widgets[0].value = "One apple is on the table.\\nTwo pears are in the bowl."
        const speak = app.graph._nodes.find(({ type }) => type === "HiggsTTSSpeak")
        lines.connect(0, speak, speak.inputs.findIndex(({ name }) => name === "text"))
    }""")
    spoken.start()
    spoken.until_done()
    spoken.until("ended")
    assert page.evaluate("runs.at(-1).prompt === runs.at(-2).prompt")
    open_box(spoken, 1)
    assert page.locator(".higgs-again").is_disabled()
    told = page.locator(".higgs-again").get_attribute("title")
    assert told == "Retakes would apply to the whole list. Connect a single item of it."
    page.keyboard.press("Escape")
