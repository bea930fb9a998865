// Lists the files of Higgs Book, to play, open in a new tab, or save.
import { Clip } from "./clip.js"
import { api, app } from "./comfy.js"
import { addStyle, make } from "./elements.js"
import { addElement, graphId, graphOf, speakerOf } from "./graph.js"
import { openPopover } from "./popover.js"
import { outputAddress } from "./server.js"
import { say } from "./words.js"

/**
 * A file of a book; see `chapters_of` in nodes/page/chapter_list.py.
 * @typedef {{filename: string, subfolder: string, version: string, seconds: number}} Chapter
 */

const BOOK = "HiggsTTSBook"
const HEIGHT = 28 // CSS pixels
const PROGRESS = "$$node-text-preview" // ComfyUI's widget that showed the progress

addStyle(`
.higgs-book { box-sizing: border-box; height: ${HEIGHT - 4}px; min-height: ${HEIGHT - 4}px;
    max-height: ${HEIGHT - 4}px; width: 100%; border: 1px solid var(--border-color, #444); border-radius: 6px;
    background: var(--comfy-input-bg, #222); color: var(--input-text, #ddd); font: 11px/16px sans-serif;
    cursor: pointer; }
.higgs-book:hover { background: var(--border-color, #444); }
.higgs-chapters { position: fixed; z-index: 10000; width: 420px; max-height: 320px; overflow: auto; padding: 4px;
    border: 1px solid var(--border-color, #444); border-radius: 6px; background: var(--comfy-menu-bg, #222);
    color: var(--input-text, #ddd); font: 12px/20px sans-serif; box-shadow: 0 4px 12px rgb(0 0 0 / 40%); }
.higgs-chapters > div { display: flex; align-items: center; gap: 8px; padding: 2px 4px; border-radius: 4px; }
.higgs-chapters > div:hover { background: color-mix(in srgb, var(--border-color, #444) 50%, transparent); }
.higgs-chapters .higgs-name { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.higgs-chapters button { flex: none; width: 26px; border: 0; background: transparent; color: inherit; font: inherit;
    cursor: pointer; }
.higgs-chapters a { color: inherit; }
`)

/** @param {number} seconds */
function clock(seconds) {
    return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`
}

/**
 * @param {Chapter} chapter
 * @param {Clip} clip
 */
function makeRow(chapter, clip) {
    const row = make("div", "higgs-chapter")
    const hear = make("button", "higgs-hear")
    const name = make("a", "higgs-name")
    const save = make("a", "higgs-save")
    const refresh = () => {
        hear.textContent = clip.isPlaying ? "❚❚" : "▶"
        hear.title = clip.isPlaying ? say("Stop") : say("Play")
    }
    clip.addEventListener("change", refresh)
    clip.addEventListener("error", () => (hear.title = say("This browser cannot play the file. Open or save it.")))
    refresh()
    hear.addEventListener("click", () => clip.toggle())
    name.textContent = `${chapter.filename} · ${clock(chapter.seconds)}`
    Object.assign(name, { href: clip.address, target: "_blank", title: say("Open in a new tab") })
    save.textContent = say("save")
    Object.assign(save, { href: clip.address, download: chapter.filename })
    row.append(hear, name, save)
    return row
}

/** @type {WeakMap<import("../../tests/web/comfy").Node, HTMLButtonElement>} */
const buttons = new WeakMap()

/**
 * @param {import("../../tests/web/comfy").Node} node
 * @param {Chapter[]} chapters
 */
function show(node, chapters) {
    let button = buttons.get(node)
    if (!button) {
        button = make("button", "higgs-book")
        button.setAttribute("aria-haspopup", "dialog")
        for (const type of ["pointerdown", "mousedown"]) {
            button.addEventListener(type, (event) => event.stopPropagation()) // else the node is dragged
        }
        buttons.set(node, button)
        addElement(node, "chapters", button, HEIGHT, 2)
    }
    const opener = button
    const count = chapters.length
    opener.textContent = `☰ ${say(count === 1 ? "Hear {count} file" : "Hear {count} files", { count })}`
    opener.onclick = () => {
        const clips = chapters.map((chapter) => new Clip(outputAddress(chapter)))
        const list = make("div", "higgs-chapters")
        list.setAttribute("role", "dialog")
        list.setAttribute("aria-label", say("Files of the book"))
        list.append(...chapters.map((chapter, number) => makeRow(chapter, clips[number])))
        openPopover(list, opener, () => clips.forEach((clip) => clip.stop()))
        list.querySelector("button")?.focus()
    }
}

/** @param {CustomEvent<{node: string, workflow: string | null, chapters: Chapter[]}>} event a chapter is complete */
function onChapters({ detail }) {
    const graph = graphOf(detail.workflow)
    const node = graph && graph !== graphId() ? undefined : speakerOf(detail.node, [BOOK])
    if (node) show(node, detail.chapters)
}

app.registerExtension({
    name: "HiggsTTS.Chapters",
    setup() {
        api.addEventListener("higgs_tts.chapters", onChapters)
    },
    nodeCreated(node) {
        if ((node.comfyClass ?? node.type) !== BOOK) return
        const onExecuted = node.onExecuted
        node.onExecuted = function (output) {
            onExecuted?.apply(this, [output])
            const progress = node.widgets?.find((widget) => widget.name === PROGRESS)
            if (progress) node.removeWidget(progress) // the report says more
            const chapters = output?.higgs_tts_chapters
            if (chapters?.length) show(node, chapters)
        }
    },
})
