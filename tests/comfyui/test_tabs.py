"""Players and takes that stay with a workflow, across tabs of ComfyUI and of the browser."""

from __future__ import annotations

from .test_browser import SET, open_browser  # noqa: F401 - a fixture
from .test_live import LOAD, LONG, SEEDS, WATCH, classic, open_listener  # noqa: F401 - fixtures
from .test_players import PLAYERS, SHOWS


def run(listener, text):
    """Speak to the end."""
    listener.page.evaluate(SET, ["HiggsTTSSpeak", "text", text])
    listener.page.evaluate(SET, ["HiggsTTSSpeak", "seed", next(SEEDS)])
    listener.start()
    listener.until_done()
    listener.until("ended")


def takes(page):
    """Return how the takes' texts begin, newest first."""
    page.locator(".higgs-open-takes").click()
    said = page.locator(".higgs-take .higgs-said").all_inner_texts()
    page.keyboard.press("Escape")
    return said


def open_tab(page, number):
    """Switch to one of the open workflows."""
    page.locator(".workflow-tab").nth(number).click()
    page.wait_for_timeout(500)


def test_a_reopened_template_shows_no_takes_of_another_tab(classic):  # noqa: F811
    page = classic.page
    classic.browser.open_template("speak")
    mine = page.locator(".workflow-tab").count() - 1
    run(classic, "In the first tab.")
    classic.browser.open_template("speak")
    assert page.evaluate(PLAYERS) == [], "takes of the other tab"
    run(classic, "In the second tab.")
    assert takes(page) == ["In the second tab."]
    page.evaluate(LOAD, page.evaluate("() => app.graph.serialize()"))  # as the list of jobs opens it
    assert page.evaluate(PLAYERS) == [], "takes of a job's tab"
    open_tab(page, mine)
    page.wait_for_function(SHOWS, arg="ended")
    assert takes(page) == ["In the first tab."]
    open_tab(page, mine + 1)
    page.wait_for_function(SHOWS, arg="ended")
    assert takes(page) == ["In the second tab."] and classic.browser.faults == []


def test_a_new_browser_tab_shows_the_player_and_its_stop_button(open_listener):  # noqa: F811
    """Also for a run queued in the tab that was closed."""
    listener = open_listener(Comfy_VueNodes_Enabled=False)
    listener.open(text=LONG * 8)  # outlasts the opening of a tab on a busy machine
    listener.start()
    listener.until("playing")
    listener.page.evaluate(SET, ["HiggsTTSSpeak", "text", "It was queued before the tab was closed."])
    listener.page.get_by_test_id("queue-button").click()
    listener.page.wait_for_timeout(500)
    listener.browser.reopen()
    page = listener.page = listener.browser.page
    listener.until("paused")
    assert page.locator(".higgs-player").get_attribute("data-state") == "speaking"
    page.evaluate(WATCH)
    page.locator(".higgs-stop").click()
    page.wait_for_function("() => runs.length === 1", timeout=240_000)
    listener.until("ended")
    assert takes(page)[0] == "It was queued before the tab was closed." and len(takes(page)) == 2
    page.close()
