// Matches the page's text areas to our nodes' texts, on the canvas and in Nodes 2.0.
import { app } from "./comfy.js"
import { isLinked } from "./graph.js"

/** @typedef {import("../../tests/web/comfy").Node} Node */

/** @type {Record<string, {widget: string, kind: string}>} by the node's type; kind: as nodes/page/written_text.py knows it */
const FIELDS = {
    HiggsTTSSpeak: { widget: "text", kind: "text" },
    HiggsTTSDialogue: { widget: "script", kind: "script" },
    HiggsTTSLines: { widget: "lines", kind: "lines" },
    HiggsTTSSubtitles: { widget: "srt", kind: "srt" },
    HiggsTTSBook: { widget: "text", kind: "text" },
}
const SETTINGS = ["paragraph_gap", "turn_gap", "takes"] // that affect the length of speech

/** @type {WeakMap<Element, Node>} by the canvas's own text areas */
const owners = new WeakMap()

/**
 * Call this for every new node.
 * @param {Node} node
 */
export function remember(node) {
    const element = widgetOf(node)?.element
    if (element) owners.set(element, node)
}

/** @param {Node} node */
function typeOf(node) {
    return node.comfyClass ?? node.type
}

/** @param {Node} node */
function widgetOf(node) {
    const field = FIELDS[typeOf(node)]
    return field && node.widgets?.find(({ name }) => name === field.widget)
}

/**
 * Our node whose text is in this text area.
 * @param {HTMLTextAreaElement} area
 * @returns {Node | undefined}
 */
export function nodeOf(area) {
    const owner = owners.get(area)
    if (owner) return owner
    // Nodes 2.0 has its own elements, each inside its node's. The text tells which widget one belongs to.
    const id = /** @type {HTMLElement | null} */ (area.closest("[data-node-id]"))?.dataset.nodeId
    const graph = app.canvas?.graph
    if (id === undefined || !graph) return undefined
    const node = graph.getNodeById(id) ?? graph.getNodeById(Number(id))
    const written = area.value.replaceAll("\r\n", "\n")
    const candidates = node ? [node, ...(node.subgraph?.nodes ?? [])] : [] // a subgraph shows texts of inner nodes
    return candidates.find((one) => String(widgetOf(one)?.value ?? "\0").replaceAll("\r\n", "\n") === written)
}

/** @param {Node} node */
export function kindOf(node) {
    const isScript = node.widgets?.some(({ name, value }) => name === "script" && value === true)
    return isScript ? "script" : FIELDS[typeOf(node)].kind
}

/**
 * Settings of a node that affect the length of its speech.
 * @param {Node} node
 * @returns {Record<string, number>}
 */
export function settingsOf(node) {
    const numbers = (node.widgets ?? []).filter(({ name, value }) => SETTINGS.includes(name) && Number.isFinite(value))
    return Object.fromEntries(numbers.map(({ name, value }) => [name, value]))
}

/**
 * Widget in which a node's own pronunciations are written. None if they come from another node.
 * @param {Node} node
 */
export function pronunciationsOf(node) {
    const isHere = !isLinked(node, "pronunciations")
    return isHere ? node.widgets?.find(({ name }) => name === "pronunciations") : undefined
}

/**
 * Writes into a text area as a user would, so that it can be undone and all listeners are called.
 * @param {HTMLTextAreaElement} area
 * @param {{start: number, stop: number, value: string}} place
 */
export function write(area, { start, stop, value }) {
    area.focus()
    area.setSelectionRange(start, stop)
    if (document.execCommand(value ? "insertText" : "delete", false, value)) return
    area.setRangeText(value, start, stop, "end")
    area.dispatchEvent(new Event("input", { bubbles: true }))
}
