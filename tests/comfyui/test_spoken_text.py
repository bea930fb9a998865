"""The text in the player: which word is marked, and what a click on a word plays."""

from __future__ import annotations

import numpy as np
import pytest

from .listening import NO_WORKLET, compare, dumped, samples_of
from .test_browser import SHOWN, open_browser  # noqa: F401 - a fixture
from .test_live import classic, open_listener  # noqa: F401 - fixtures

RATE = 24_000
NEAR = 0.06  # seconds
TEXT = "The train leaves at half past seven, and it waits for nobody. " * 2
WORDS = "async () => (await (await app.api.fetchApi(`/higgs_tts/runs/${runs.at(-1).id}`)).json()).words"
MARKED = "[...document.querySelectorAll('.higgs-word')].findIndex((word) => word.ariaCurrent === 'true')"
# Seconds since the first sound, without what the device holds back, and the marked word.
HEARD = f"""() => {{
    const {{ context, time, parts }} = heard
    const lead = parts[0].findIndex((sample) => Math.round(sample * 32767) !== 0) / context.sampleRate
    return [context.currentTime - context.outputLatency - time - lead, {MARKED}]
}}"""
# Changes the answers about a run: change(told) gets and returns the server's.
CHANGE = """change => {
    window.ask ??= app.api.fetchApi
    app.api.fetchApi = async function (route, options) {
        const answer = await ask.call(this, route, options)
        if (!/runs\\/\\w+[?]/.test(route) || !answer.ok) return answer
        return new Response(JSON.stringify(eval(change)(await answer.json())))
    }
}"""


@pytest.fixture(
    scope="module", params=[("", False), ("", True), (NO_WORKLET, False)], ids=["canvas", "nodes2", "buffers"]
)
def spoken(request, open_listener):  # noqa: F811
    """A page whose player has played a text of two chunks."""
    script, is_vue = request.param
    listener = open_listener(script, Comfy_VueNodes_Enabled=is_vue)
    listener.open(text=TEXT, chunk_seconds=5)
    listener.start()
    listener.until_done()
    listener.until("ended")
    listener.words = listener.page.evaluate(WORDS)
    yield listener
    assert listener.browser.faults == []


def is_right(words, marked, seconds):
    """True if a word is marked near its time, or none between words."""
    if marked < 0:
        return not any(word["start"] + NEAR < seconds < word["end"] - NEAR for word in words)
    stop = words[marked + 1]["start"] if marked + 1 < len(words) else words[marked]["end"]
    return words[marked]["start"] - NEAR < seconds < stop + NEAR


def test_all_words_of_two_chunks_are_shown_after_the_run(spoken):
    assert "2 chunks" in spoken.page.evaluate(SHOWN, "PreviewAny")
    assert spoken.page.locator(".higgs-word").all_inner_texts() == TEXT.split()
    assert spoken.page.locator(".higgs-text").inner_text() == TEXT.strip()
    assert [word["word"] for word in spoken.words] == TEXT.split()
    assert spoken.page.locator("[aria-current]").count() == 0, "nothing is heard any more"


def test_the_mark_follows_the_sound(spoken):
    """The audio is stopped to read both: then it must not move on by a clock of its own."""
    page = spoken.page
    page.evaluate("() => heard.reset()")
    page.locator(".higgs-play").click()
    silent = np.flatnonzero(samples_of(spoken.comfy))[0]
    for at in (2, 7, 12, 17, 21):
        page.wait_for_function(f"at => {MARKED} >= at", arg=at)
        page.evaluate("() => heard.context.suspend()")
        page.wait_for_timeout(500)
        since, marked = page.evaluate(HEARD)
        seconds = since + silent / RATE
        assert is_right(spoken.words, marked, seconds), (seconds, spoken.words[marked])
        page.evaluate("() => heard.context.resume()")
    spoken.until("ended")
    assert compare(spoken.heard(), spoken.said()) == (0, True)


def test_a_click_on_a_word_plays_from_it(spoken):
    for at in (5, 1):
        spoken.page.evaluate("() => heard.reset()")
        spoken.page.locator(".higgs-word").nth(at).click()
        assert_played_from(spoken, at)


def test_words_are_reached_by_keys(spoken):
    page = spoken.page
    page.evaluate("() => heard.reset()")
    assert page.locator(".higgs-word[tabindex]").count() == 1
    page.locator(".higgs-word[tabindex]").focus()
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.locator(".higgs-word[tabindex]").count() == 1
    page.keyboard.press("Enter")
    assert_played_from(spoken, 2)


def assert_played_from(listener, at):
    """Play to the end, and check that this word was the first."""
    listener.until("playing")
    listener.until("ended")
    heard, said = listener.heard(), dumped(listener.comfy, round(listener.words[at]["start"] * RATE))
    assert compare(heard, said)[1], f"{len(heard)} samples instead of {len(said)}"


def test_nothing_is_marked_before_a_chunk_s_times_are_known(classic):  # noqa: F811
    page = classic.page
    page.evaluate("window.withheld = true")
    page.evaluate(CHANGE, "told => withheld ? { ...told, state: 'speaking', edition: 0, known: 0, words: [] } : told")
    classic.open(text=TEXT)
    classic.start()
    classic.until("playing")
    page.wait_for_timeout(500)
    assert page.locator(".higgs-text").inner_text() == "" and page.locator("[aria-current]").count() == 0
    page.evaluate("withheld = false")
    page.locator(".higgs-word").first.wait_for()
    classic.until_done()
    page.wait_for_function("() => document.querySelector('.higgs-player').dataset.state === 'complete'")
    page.locator(".higgs-word").nth(2).click()
    page.locator("[aria-current]").wait_for()
    classic.until("ended")
    assert page.locator("[aria-current]").count() == 0 and classic.browser.faults == []


def test_a_mark_in_a_long_text_changes_two_words_only(classic):  # noqa: F811
    page = classic.page
    words = """told => ({ ...told, edition: 1, known: 0, words: Array.from({ length: 3500 }, (_, at) => (
        { word: "railway", start: at / 4, end: (at + 1) / 4, speaker: "", method: "attention" })) })"""
    page.evaluate(CHANGE, words)
    classic.open(text=TEXT)
    classic.start()
    classic.until_done()
    classic.until("ended")
    assert page.locator(".higgs-word").count() == 3500
    page.evaluate("""() => {
        window.changed = []
        new MutationObserver((changes) => changed.push(...changes)).observe(
            document.querySelector(".higgs-text"),
            { attributes: true, characterData: true, childList: true, subtree: true },
        )
        window.marks = 0
        new MutationObserver((changes) => { marks += changes.length }).observe(
            document.querySelector(".higgs-text"), { attributeFilter: ["aria-current"], subtree: true }
        )
    }""")
    page.locator(".higgs-play").click()
    classic.until("playing")
    classic.until("ended")
    changed, marks, kinds = page.evaluate("() => [changed.length, marks, changed.map(({ type }) => type)]")
    assert marks >= 10 and changed <= 2 * marks and set(kinds) == {"attributes"}
    assert classic.browser.faults == []
