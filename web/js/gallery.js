// Lists the files of Higgs Lines: plays the takes of each row, and keeps one by its seed.
import { Clip } from "./clip.js"
import { app } from "./comfy.js"
import { addStyle, make } from "./elements.js"
import { addElement, isLinked } from "./graph.js"
import { outputAddress, withSeed } from "./server.js"
import { openTakeList } from "./take_list.js"
import { inWords } from "./times.js"
import { say, translated } from "./words.js"

/** @typedef {import("../../tests/web/comfy").Node} Node */

/**
 * A file of a row; see `takes_of` in nodes/sheet/takes.py. own: the row has this seed already.
 * @typedef {{id: string, text: string, file: string, filename: string, subfolder: string, version: string,
 *     seconds: number, seed: number | null, own: boolean, problem: string}} LineTake
 */

const HEIGHT = 28 // CSS pixels

addStyle(`
.higgs-gallery { box-sizing: border-box; height: ${HEIGHT - 4}px; min-height: ${HEIGHT - 4}px;
    max-height: ${HEIGHT - 4}px; width: 100%; border: 1px solid var(--border-color, #444); border-radius: 6px;
    background: var(--comfy-input-bg, #222); color: var(--input-text, #ddd); font: 11px/16px sans-serif;
    cursor: pointer; }
.higgs-gallery:hover { background: var(--border-color, #444); }
`)

class Gallery {
    /** @type {LineTake[]} */
    takes = []
    /** @type {Map<string, number>} a row's id -> its seed in the sheet */
    #kept = new Map()

    /** @param {Node} node */
    constructor(node) {
        this.node = node
        this.button = make("button", "higgs-gallery")
        this.button.setAttribute("aria-haspopup", "dialog")
        for (const type of ["pointerdown", "mousedown"]) {
            this.button.addEventListener(type, (event) => event.stopPropagation()) // else the node is dragged
        }
        this.button.addEventListener("click", () => this.open())
        addElement(node, "gallery", this.button, HEIGHT, 2)
    }

    /** @param {LineTake[]} takes */
    show(takes) {
        this.takes = takes
        this.#kept = new Map(takes.flatMap(({ id, own, seed }) => (own && seed !== null ? [[id, seed]] : [])))
        const rows = new Set(takes.map(({ id }) => id)).size
        const many = say(rows === 1 ? "Hear {rows} row, {takes} takes" : "Hear {rows} rows, {takes} takes", {
            rows,
            takes: takes.length,
        })
        const few = say(rows === 1 ? "Hear {rows} row" : "Hear {rows} rows", { rows })
        this.button.textContent = `☰ ${takes.length > rows ? many : few}`
    }

    open() {
        const clips = this.takes.map((take) => new Clip(outputAddress(take)))
        openTakeList(
            this.button,
            say("Rows and their takes"),
            this.takes.map((take, number) => this.#take(take, clips[number])),
        ).addEventListener("close", () => clips.forEach((clip) => clip.stop()))
    }

    get #sheet() {
        return this.node.widgets?.find(({ name }) => name === "lines")
    }

    /** Reason why no take can be kept, empty if they can. */
    get #problem() {
        return isLinked(this.node, "lines") ? say("The lines come from another node. Enter the seed there.") : ""
    }

    /**
     * @param {LineTake} take
     * @param {Clip} clip
     * @returns {import("./take_list.js").Take}
     */
    #take(take, clip) {
        const { seed } = take
        return {
            name: () => `${take.file} · ${inWords(take.seconds, 1)}`,
            said: take.text,
            isPlaying: () => clip.isPlaying,
            isShown: () => clip.isPlaying,
            isOwn: () => seed !== null && this.#kept.get(take.id) === seed,
            wasKept: () => true, // any seed in a sheet was written on purpose
            problem:
                this.#problem ||
                translated(take.problem) ||
                (seed === null ? say("This seed is too large for a browser.") : ""),
            play: () => clip.toggle(),
            keep: async () => {
                const sheet = this.#sheet
                if (!sheet || seed === null) return
                sheet.value = await withSeed(sheet.value, take.id, seed)
                sheet.callback?.(sheet.value)
                this.#kept.set(take.id, seed)
                clip.dispatchEvent(new Event("change"))
            },
            changes: [clip],
        }
    }
}

/** @type {WeakMap<Node, Gallery>} */
const galleries = new WeakMap()

app.registerExtension({
    name: "HiggsTTS.Gallery",
    nodeCreated(node) {
        if ((node.comfyClass ?? node.type) !== "HiggsTTSLines") return
        const onExecuted = node.onExecuted
        node.onExecuted = function (output) {
            onExecuted?.apply(this, [output])
            const takes = output?.higgs_tts_takes
            if (!takes?.length) return
            const gallery = galleries.get(node) ?? new Gallery(node)
            galleries.set(node, gallery)
            gallery.show(takes)
        }
    },
})
