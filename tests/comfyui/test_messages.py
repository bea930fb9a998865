"""Errors and reports on ComfyUI's page in its language, in both renderers; the server and its log keep English."""

from __future__ import annotations

import json

import pytest
from higgs_tts.tests.templates import TITLES

from .server import TODAY
from .test_browser import SHOWN, open_browser  # noqa: F401 - a fixture
from .test_languages import LOAD, SET, said

SHORT = ["max_frames", 40]
DETAILS = "() => Object.values(app.lastNodeErrors ?? {}).flatMap(({errors}) => errors.map(({details}) => details))"
WAIT = 30_000  # ms
MORE = "查看详情"
TEXT = "text => document.body.innerText.includes(text)"


def template(name):
    return json.loads((TODAY / f"{TITLES[name]}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def chinese(open_browser, start_comfy):  # noqa: F811
    return open_browser(start_comfy(page=True), Comfy_Locale="zh")


@pytest.fixture(params=[False, True], ids=["canvas", "nodes2"])
def page(chinese, request):
    chinese.page.evaluate("on => app.extensionManager.setting.set('Comfy.VueNodes.Enabled', on)", request.param)
    return chinese.page


def message(english, **values):
    text = said("zh", english, "messages")
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


def test_a_refusal_before_the_run(chinese, page):
    page.evaluate(LOAD, template("speak"))
    page.evaluate(SET, ["text", "  "])
    chinese.press()
    english = "the text is empty. Enter the text to speak."
    expected = said("zh", "{node}: {error}").replace("{node}", "Higgs 朗读").replace("{error}", message(english))
    assert page.evaluate(DETAILS) == [f"text - {expected}"]
    assert f"Higgs Speak: {english}" in chinese.comfy.log.read_text(encoding="utf-8", errors="replace")


def test_an_error_of_a_run(chinese, page):
    page.evaluate(LOAD, template("server"))
    page.evaluate(SET, ["addresses", "127.0.0.1:9"])
    page.evaluate("""() => {
        window.failed = null
        app.api.addEventListener("execution_error", ({detail}) => { window.failed = detail }, {once: true})
    }""")
    chinese.page.get_by_test_id("queue-button").click()
    page.wait_for_function("() => window.failed", timeout=WAIT)
    english = "{address} refused the connection. Check that the server is running."
    reason = message("The server cannot be used: {sentence}", sentence=message(english, address="127.0.0.1:9"))
    assert page.evaluate("() => window.failed.exception_message").strip() == f"Higgs TTS 服务器：{reason}"
    page.wait_for_function(f"texts => texts.some({TEXT})", arg=[reason, MORE], timeout=WAIT)
    if page.get_by_text(MORE).count():  # since 0.33 the reason stands behind it
        page.get_by_text(MORE).first.click(timeout=WAIT)
    page.wait_for_function(TEXT, arg=reason, timeout=WAIT)
    chinese.shoot("error-zh")
    page.keyboard.press("Escape")
    log = chinese.comfy.log.read_text(encoding="utf-8", errors="replace")
    assert "Higgs TTS Server: The server cannot be used: 127.0.0.1:9 refused the connection." in log


def test_the_report_of_a_run(chinese, page):
    page.evaluate(LOAD, template("speak"))
    page.evaluate(SET, SHORT)
    chinese.run()
    page.wait_for_function(f"() => ({SHOWN})('PreviewAny').includes('模型')", timeout=WAIT)
    shown = page.evaluate(SHOWN, "PreviewAny")
    assert message("Model: {model}", model="") in shown and "是实时的" in shown and "Model: " not in shown
    chinese.shoot("info-zh")
    sent = chinese.comfy.get("/history")
    texts = [text for run in sent.values() for output in run["outputs"].values() for text in output.get("text", [])]
    assert any("Model: " in text for text in texts), "the server keeps English"


def test_the_progress_and_the_report_of_a_book(chinese, page):
    page.evaluate(LOAD, template("book"))
    page.evaluate(SET, SHORT)
    page.evaluate(SET, ["folder", str(len(list((chinese.comfy.base / "output").glob("*"))))])  # a new one
    page.evaluate("""() => {
        window.progress = []
        app.api.addEventListener("progress_text", ({detail}) => progress.push(detail.text))
    }""")
    chinese.run()
    progress = page.evaluate("() => progress")
    assert progress and all("章" in text and "chapter" not in text for text in progress), progress
    report = page.evaluate(SHOWN, "HiggsTTSBook")
    assert message("Model: {model}", model="") in report and "已生成" in report and "Model: " not in report, report
    chinese.shoot("book-zh")
