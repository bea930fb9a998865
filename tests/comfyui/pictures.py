"""Make the README's pictures and sounds anew, with the embedded model.

    COMFYUI_PATH=/path/to/ComfyUI python tests/comfyui/pictures.py [NAME...]

Needs what the browser tests need, and Pillow and PyAV, which come with ComfyUI. NAME: speech, two_voices, cloned (the
sounds), player, text_to_speech, dialogue, book, lines, voice_cloning; without one, all.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageDraw
from playwright.sync_api import Page, ViewportSize, sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import conftest  # noqa: F401 - imports the pack
from higgs_tts.engine import BUILT_IN_CLIPS, read_clip
from higgs_tts.tests.comfyui import chromium
from higgs_tts.tests.comfyui.server import ROOT, Comfy, lay_out
from higgs_tts.tests.comfyui.test_browser import Browser

IMAGES, SOUNDS = ROOT / "docs" / "images", ROOT / "docs" / "sounds"
SPEECH = (
    "The lighthouse had been dark for eleven years when the letter came. On the last night of October he lit the lamp."
)
SCRIPT = """[amber] Did you hear that?
[oliver] It is only the wind.
[amber] The wind does not knock three times.
[oliver] [pause 0.6] Then open the door, and ask it in."""
LONGER = (
    "Good morning! The kettle is on, the paper is on the table, and for once nobody is in a hurry. Sit down, take your "
    "time, and tell me everything from the beginning."
)
CLONED = "This is the voice from the clip, and these are words it has never said before."
NODES = {  # picture: (template, node)
    "dialogue": ("dialogue", "HiggsTTSDialogue"),
    "book": ("book", "HiggsTTSBook"),
    "lines": ("lines", "HiggsTTSLines"),
    "voice_cloning": ("clone_voice", "HiggsTTSVoice"),
}
WIDTH, HEIGHT, BARS = 480, 160, 96  # of a sound's picture
SECONDS, PAUSE = 10.0, 0.08  # of the player in motion, and at least between two of its pictures
VIEW: ViewportSize = {"width": 1600, "height": 1500}
SHOW = """([type, scale]) => {
    const node = app.graph._nodes.find((node) => node.type === type)
    app.canvas.ds.scale = scale
    app.canvas.ds.offset = [120 / scale - node.pos[0], 190 / scale - node.pos[1]]
    app.canvas.deselectAll?.()
    app.canvas.setDirty(true, true)
    return [node.size[0] * scale, node.size[1] * scale]
}"""
WITHOUT_PATHS = """base => {
    for (const widget of app.graph._nodes.flatMap((node) => node.widgets ?? [])) {
        if (typeof widget.value !== "string" || !widget.value.includes(base)) continue
        widget.value = widget.value.replaceAll(base, "ComfyUI")
    }
}"""
FOOT = """() => {
    const node = app.graph._nodes.find(({ type }) => type === "HiggsTTSSpeak")
    app.canvas.ds.scale = 1
    app.canvas.ds.offset = [160 - node.pos[0], 480 - node.pos[1] - node.size[1]]
    app.canvas.setDirty(true, true)
}"""
WHOLE = """() => {
    const boxes = app.graph._nodes.map((node) => node.getBounding())
    const [left, top] = [0, 1].map((at) => Math.min(...boxes.map((box) => box[at])))
    const [right, foot] = [0, 1].map((at) => Math.max(...boxes.map((box) => box[at] + box[at + 2])))
    const scale = 1300 / (right - left)
    app.canvas.ds.scale = scale
    app.canvas.ds.offset = [120 / scale - left, 190 / scale - top]
    app.canvas.setDirty(true, true)
    return [(right - left) * scale, (foot - top) * scale]
}"""


def say(out: Path, *args: str) -> np.ndarray:
    """Speak with the embedded model. Returns samples [n] at 24 kHz."""
    subprocess.run([sys.executable, "-m", "engine", "say", *args, "--out", str(out)], cwd=ROOT, check=True)
    return read_clip(out)[0][0]


def sound(name: str, folder: Path) -> None:
    """Write a sound of the README: an .mp4 that shows its waveform, and a picture of the same that links to it."""
    out = folder / f"{name}.wav"
    if name == "speech":
        wav = say(out, SPEECH, "--voice", "clara")
    elif name == "two_voices":
        (folder / "script.txt").write_text(SCRIPT, encoding="utf-8")
        wav = say(out, "--script", str(folder / "script.txt"))
    else:
        clip = read_clip(BUILT_IN_CLIPS / "ruth.flac")[0][0]
        wav = np.concatenate([clip, np.zeros(12_000, np.float32), say(out, CLONED, "--voice", "ruth")])
    picture = outline(wav)
    picture.quantize(16).save(IMAGES / f"{name}.png", optimize=True)
    film(SOUNDS / f"{name}.mp4", picture, wav)


def outline(wav: np.ndarray) -> Image.Image:
    """Draw samples [n] as bars, with a sign that they can be played."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "#1a1d2b")
    pen, room = ImageDraw.Draw(image), WIDTH - 90
    for bar, part in enumerate(np.array_split(np.abs(wav), BARS)):
        x, size = 76 + bar * room / BARS, max(1.5, 0.9 * HEIGHT / 2 * float(part.max()) ** 0.5)
        pen.rounded_rectangle((x, HEIGHT / 2 - size, x + 2.4, HEIGHT / 2 + size), 1, fill="#5fb0f7")
    pen.polygon([(24, HEIGHT / 2 - 18), (24, HEIGHT / 2 + 18), (54, HEIGHT / 2)], fill="#f2f4ff")
    return image


def film(path: Path, picture: Image.Image, wav: np.ndarray) -> None:
    """Write samples [n] at 24 kHz as an .mp4 that shows a picture."""
    with av.open(str(path), "w", options={"movflags": "faststart"}) as file:
        video = file.add_stream("libx264", 2, options={"tune": "stillimage", "crf": "28"})
        video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        audio = file.add_stream("aac", 48_000, layout="mono")
        audio.bit_rate = 96_000
        for _ in range(round(2 * len(wav) / 24_000) + 1):
            file.mux(video.encode(av.VideoFrame.from_image(picture)))
        file.mux(video.encode(None))
        samples = av.AudioFrame.from_ndarray(np.ascontiguousarray(wav[None], np.float32), "fltp", "mono")
        samples.sample_rate = 24_000
        resampler = av.AudioResampler("fltp", "mono", 48_000, frame_size=audio.frame_size or 1024)
        for frame in [*resampler.resample(samples), *resampler.resample(None)]:
            file.mux(audio.encode(frame))
        file.mux(audio.encode(None))


@contextmanager
def browsing(folder: Path) -> Iterator[Browser]:
    """Yield ComfyUI's page just after the pack was installed."""
    base = folder / "comfy"
    base.mkdir()
    lay_out(base)
    (base / "page" / "index.html").unlink()
    (base / "page").rmdir()
    comfy = Comfy(base, ("--cpu",))
    try:
        comfy.post("/settings", {"Comfy.TutorialCompleted": True, "Comfy.Minimap.Visible": False})
        with sync_playwright() as playwright:
            chrome = playwright.chromium.launch(executable_path=chromium.on_the_path(), args=chromium.ARGS)
            page = chrome.new_context(viewport=VIEW).new_page()
            yield Browser(page, comfy, folder, "127.0.0.1")
            chrome.close()
    finally:
        comfy.stop()


def shoot(page: Page, size: tuple[float, float]) -> Image.Image:
    """Return the picture of what `SHOW` or `WHOLE` has moved to the page's corner."""
    page.wait_for_timeout(1500)
    canvas = page.evaluate("() => { const b = app.canvas.canvas.getBoundingClientRect(); return [b.left, b.top] }")
    width, height = size[0] + 24, size[1] + 60
    clip = {"x": canvas[0] + 108, "y": canvas[1] + 148, "width": width, "height": height}
    return Image.open(io.BytesIO(page.screenshot(clip=clip))).convert("RGB")


def node_picture(browser: Browser, name: str) -> None:
    template, node = NODES[name]
    browser.open_template(template)
    if template == "clone_voice":
        with browser.page.expect_file_chooser() as chooser:
            browser.click(node, widget="upload")
        chooser.value.set_files(str(BUILT_IN_CLIPS / "ruth.flac"))
        words = (BUILT_IN_CLIPS / "ruth.txt").read_text(encoding="utf-8").strip()
        browser.page.evaluate(
            "([type, words]) => { const node = app.graph._nodes.find((node) => node.type === type);"
            "const text = node.widgets.find(({ name }) => name === 'transcript'); text.value = words;"
            "text.callback?.(words); node.title = 'Higgs Voice' }",
            [node, words],
        )
        browser.page.locator(".higgs-check").nth(4).wait_for()
    else:
        browser.run()
    browser.page.evaluate(WITHOUT_PATHS, str(browser.comfy.base))
    picture = shoot(browser.page, browser.page.evaluate(SHOW, [node, 1]))
    picture.quantize(160, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


def template_picture(browser: Browser) -> None:
    browser.open_template("speak")
    browser.run()
    picture = shoot(browser.page, browser.page.evaluate(WHOLE))
    picture.quantize(160, dither=Image.Dither.NONE).save(IMAGES / "text_to_speech.png", optimize=True)


def player_picture(browser: Browser) -> None:
    """Write the player in motion, as the browser draws it."""
    page = browser.page
    browser.open_template("speak")
    page.evaluate(
        "text => { app.graph._nodes.find(({ type }) => type === 'HiggsTTSSpeak').widgets[0].value = text }", LONGER
    )
    browser.run()
    page.set_viewport_size({"width": 760, "height": 640})
    page.evaluate(FOOT)
    page.wait_for_timeout(3000)
    box = page.locator(".higgs-player").bounding_box()
    assert box
    edges = [round(edge) for edge in (box["x"], box["y"], box["x"] + box["width"], box["y"] + box["height"])]
    frames: list[tuple[float, Image.Image]] = []
    session = page.context.new_cdp_session(page)

    def keep(told: dict) -> None:
        picture = Image.open(io.BytesIO(base64.b64decode(told["data"]))).convert("RGB").crop(edges)
        if not frames or told["metadata"]["timestamp"] > frames[-1][0] + PAUSE:
            frames.append((told["metadata"]["timestamp"], picture))
        session.send("Page.screencastFrameAck", {"sessionId": told["sessionId"]})

    play = page.locator(".higgs-player .higgs-play")
    if play.text_content() == "❚❚":
        play.click()
    page.locator(".higgs-player .higgs-wave").click(position={"x": 1, "y": 10})  # from its beginning
    if play.text_content() == "❚❚":
        play.click()
    session.on("Page.screencastFrame", keep)
    session.send("Page.startScreencast", {"format": "jpeg", "quality": 95})
    play.click()
    page.wait_for_timeout(1000 * SECONDS)
    session.send("Page.stopScreencast")
    page.set_viewport_size(VIEW)
    times, pictures = zip(*frames, strict=True)
    lasts = [round(1000 * (stop - start)) for start, stop in zip(times, [*times[1:], times[-1] + 1], strict=True)]
    more = {"save_all": True, "append_images": pictures[1:], "duration": lasts, "loop": 0}
    pictures[0].save(IMAGES / "player.webp", quality=60, method=6, **more)


def main() -> None:
    wanted = sys.argv[1:] or ["speech", "two_voices", "cloned", "player", "text_to_speech", *NODES]
    with tempfile.TemporaryDirectory() as folder:
        for name in {"speech", "two_voices", "cloned"} & {*wanted}:
            sound(name, Path(folder))
        pictures = [name for name in wanted if name in ("player", "text_to_speech", *NODES)]
        if not pictures:
            return
        with browsing(Path(folder)) as browser:
            for name in pictures:
                if name == "player":
                    player_picture(browser)
                elif name == "text_to_speech":
                    template_picture(browser)
                else:
                    node_picture(browser, name)


if __name__ == "__main__":
    main()
