"""Playback while a node speaks: a real Chromium on a real ComfyUI's page, with the embedded checkpoint.

Needs Playwright and Chromium. COMFYUI_PATH and COMFYUI_PYTHON are as for the tests in tests/comfyui; --page is the
folder of another frontend. Rows go into --out, one for each ComfyUI, frontend, renderer, node and output.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import os
import pathlib
import re
import shutil
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "comfyui"))

import chromium
from common import commit, put
from listening import NO_WORKLET, RECORDER, compare, dumped, heard_on
from server import ROOT, TODAY, Comfy, lay_out

KEYS = ("comfyui", "frontend", "renderer", "node", "output")
TEMPLATES = {"HiggsTTSSpeak": "Higgs TTS - Text to Speech", "HiggsTTSDialogue": "Higgs TTS - Dialogue"}
OURS = re.compile(r"higgs", re.IGNORECASE)
HOUR = 3600
WAIT = 15_000  # ms
# Blocks all other addresses. Playwright's own way would delay every request of the page.
ALONE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
PREPARE = """([type, seed, text]) => {
    const node = app.graph._nodes.find((node) => node.type === type)
    const set = (name, value) => { node.widgets.find((widget) => widget.name === name).value = value }
    set("seed", seed)
    if (text) set("text", text)
    if (type === "HiggsTTSDialogue") set("even_loudness", false)
    const dump = LiteGraph.createNode("HiggsProbeDump")
    dump.pos = [1000, 900]
    app.graph.add(dump)
    node.connect(0, dump, 0)
}"""
WATCH = """() => {
    heard.reset()
    window.told = 0
    window.ended = false
    app.api.addEventListener("higgs_tts.run", () => { window.told += 1 })
    app.api.addEventListener("execution_success", () => { window.ended = true }, { once: true })
    const run = document.querySelector("[data-testid=queue-button]")
    run.addEventListener("click", () => { window.clicked = performance.now() }, { capture: true, once: true })
}"""
DONE = "() => window.ended && document.querySelector('.higgs-player')?.dataset.mode === 'ended'"


def main():
    args = _arguments()
    if "COMFYUI_PATH" not in os.environ:
        raise SystemExit("Set COMFYUI_PATH to the folder of a ComfyUI.")
    out = pathlib.Path(args.out)
    result = json.loads(out.read_text()) if out.is_file() else {"rows": []}
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder, "base")
        lay_out(base)
        shutil.rmtree(base / "page")
        result |= {"date": str(datetime.date.today()), "commit": commit()}
        if args.hour:
            result |= _hour(base, args)
        else:
            for row in _listen(base, args):
                result["rows"] = put(result["rows"], row, KEYS)
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def _arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", help="folder of a frontend, with its index.html; else ComfyUI's own")
    parser.add_argument("--runs", type=int, default=5, help="of each kind, after one that loads the model")
    parser.add_argument("--hour", action="store_true", help="only what an hour of narration takes of memory")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "live.json"))
    return parser.parse_args()


def _flags(args) -> tuple[str, ...]:
    return ("--front-end-root", args.page) if args.page else ()


@contextlib.contextmanager
def _browser():
    from playwright.sync_api import sync_playwright

    if (path := chromium.on_the_path()) is None:
        raise SystemExit("There is no Chromium on the PATH.")
    with sync_playwright() as playwright:
        chrome = playwright.chromium.launch(executable_path=path, args=[*chromium.ARGS, ALONE])
        yield chrome
        chrome.close()


def _listen(base: pathlib.Path, args) -> list[dict]:
    """Measure a row for each renderer and node, and one for pages without AudioWorklet."""
    comfy, rows = Comfy(base, ("--cpu", *_flags(args))), []
    seeds = itertools.count(1)  # a new seed each time, so that nothing is reused
    try:
        with _browser() as chrome:
            for renderer, node, output in (
                ("canvas", "HiggsTTSSpeak", "worklet"),
                ("canvas", "HiggsTTSSpeak", "buffers"),
                ("canvas", "HiggsTTSDialogue", "worklet"),
                ("nodes 2.0", "HiggsTTSSpeak", "worklet"),
                ("nodes 2.0", "HiggsTTSDialogue", "worklet"),
            ):
                page = Page(chrome, comfy, renderer, output)
                page.run(node, next(seeds))  # loads the model, warms up the page
                rows.append(_together([page.run(node, next(seeds)) for _ in range(args.runs)]) | page.about())
                print(json.dumps(rows[-1]), file=sys.stderr)
                page.close()
    finally:
        comfy.stop()
    return rows


def _together(runs: list[dict]) -> dict:
    """Combine runs in a row: the one with the median first sound, and the failures of all."""
    first = [run["first_audible_ms"] for run in runs]
    return {
        "first_audible_ms": round(statistics.median(first)),
        "first_audible_ms_runs": first,
        "gaps": sum(run["gaps"] for run in runs),
        "samples_equal": all(run["samples_equal"] for run in runs),
        "clients_told": max((run["clients_told"] for run in runs), key=lambda told: abs(told - 1)),
        "speech_s": runs[0]["speech_s"],
        "node": runs[0]["node"],
    }


class Page:
    """ComfyUI's page in a browser that records playback, and a second page that should play nothing."""

    def __init__(self, chrome, comfy: Comfy, renderer: str, output: str):
        self._comfy, self._renderer, self._output = comfy, renderer, output
        self._errors: list[str] = []
        comfy.post("/settings", {"Comfy.TutorialCompleted": True, "Comfy.VueNodes.Enabled": renderer == "nodes 2.0"})
        self.page = self._open(chrome)
        self._other = self._open(chrome, (320, 240))  # small, as it need not draw much

    def _open(self, chrome, size=(1600, 1000)):
        page = chrome.new_page(viewport={"width": size[0], "height": size[1]})
        page.add_init_script(RECORDER + (f"\n;{NO_WORKLET}" if self._output == "buffers" else ""))
        page.on("pageerror", lambda error: self._errors.append(str(error)))
        page.on("console", self._on_console)
        page.goto(f"http://127.0.0.1:{self._comfy.port}/")
        page.wait_for_function("window.app?.graph && app.canvas?.canvas")
        page.get_by_test_id("side-toolbar").wait_for()
        return page

    def _on_console(self, message):
        if message.type == "error" and OURS.search(message.text + str(message.location)):
            self._errors.append(message.text)

    def run(self, node: str, seed: int, text: str = "") -> dict:
        """Run once with the Run button, and return what was played."""
        saved = json.loads((TODAY / f"{TEMPLATES[node]}.json").read_text(encoding="utf-8"))
        self.page.evaluate("saved => app.loadGraphData(saved)", saved)
        self.page.evaluate(PREPARE, [node, seed, text])
        self._other.evaluate(WATCH)
        self.page.bring_to_front()
        self.page.evaluate(WATCH)
        self.page.get_by_test_id("queue-button").click()
        self.page.wait_for_function(DONE, timeout=600_000)
        said = dumped(self._comfy)
        gaps, is_equal = compare(heard_on(self.page), said)
        return {
            "first_audible_ms": round(self.page.evaluate("heard.first - clicked")),
            "gaps": gaps,
            "samples_equal": is_equal,
            "clients_told": sum(page.evaluate("told > 0") for page in (self.page, self._other)),
            "speech_s": round(len(said) / 24000, 2),
            "node": node,
        }

    def about(self) -> dict:
        system = self._comfy.get("/system_stats")["system"]
        version = self.page.evaluate("window.__COMFYUI_FRONTEND_VERSION__")
        return {
            "comfyui": system["comfyui_version"],
            "frontend": version,
            "renderer": self._renderer,
            "output": self._output,
            "console_errors": len(self._errors),
            "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 1),  # above 1: other processes compete
        }

    def close(self):
        self.page.close()
        self._other.close()


def _hour(base: pathlib.Path, args) -> dict:
    """Return the memory, in MB, that an hour of narration takes in ComfyUI's process and in the page's script."""
    comfy = Comfy(base, ("--cpu", *_flags(args)))
    try:
        with _browser() as chrome:
            page = Page(chrome, comfy, "canvas", "worklet")
            page.run("HiggsTTSSpeak", 1)
            client = page.page.evaluate("app.api.clientId")
            comfy.get(f"/higgs_probe/hour?seconds=60&client={client}")  # all code has run once
            page.page.wait_for_timeout(WAIT)
            before = _resident(comfy), _heap(page.page)
            comfy.get(f"/higgs_probe/hour?seconds={HOUR}&client={client}")
            page.page.wait_for_timeout(WAIT)
            after = _resident(comfy), _heap(page.page)
            server, script = (max(0.0, round(now - then, 1)) for now, then in zip(after, before, strict=True))
            page.close()
    finally:
        comfy.stop()
    return {"hour_mb": round(server + script, 1), "hour": {"server_mb": server, "page_mb": script}}


def _resident(comfy: Comfy) -> float:
    pages = int(pathlib.Path(f"/proc/{comfy.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _heap(page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    return session.send("Runtime.getHeapUsage")["usedSize"] / 1e6


if __name__ == "__main__":
    main()
