// Nodes of the open graph, by the ids that the server uses: "7", or "12:7" for node 7 in the subgraph of node 12.
import { app } from "./comfy.js"

const ELSEWHERE = "(on a server)" // not a checkpoint's name: the server's abilities are unknown here
export const NO_ID = "00000000-0000-0000-0000-000000000000" // of an emptied graph in older frontends
const SPEAKERS = ["HiggsTTSSpeak", "HiggsTTSDialogue", "HiggsTTSLines", "HiggsTTSSubtitles"]

/** Id of the open graph, unique for each workflow. */
export function graphId() {
    return root().id
}

/**
 * Id of the graph that a workflow was sent from, undefined if it had none.
 * @param {string | null | undefined} workflow
 */
export function graphOf(workflow) {
    return workflow && workflow !== NO_ID ? workflow : undefined
}

function root() {
    return app.rootGraph ?? app.graph
}

/**
 * Node with this id, if the open graph has it.
 * @param {string} id
 */
export function nodeOf(id) {
    /** @type {import("../../tests/web/comfy").Graph | undefined} */
    let graph = root()
    let node
    for (const part of id.split(":")) {
        node = graph?.getNodeById(part) ?? graph?.getNodeById(Number(part))
        graph = node?.subgraph
    }
    return node
}

/**
 * Node with this id and one of these types, if the open graph has it.
 * @param {string} id
 * @param {string[]} [types] default: those that speak
 */
export function speakerOf(id, types = SPEAKERS) {
    const node = nodeOf(id)
    return node && types.includes(node.type) ? node : undefined
}

/**
 * Has a function called after one of a node's methods.
 * @param {import("../../tests/web/comfy").Node} node
 * @param {"onConfigure" | "onConnectionsChange" | "onRemoved"} name
 * @param {() => void} act
 */
export function after(node, name, act) {
    const hooks = /** @type {any} */ (node)
    const before = hooks[name]
    hooks[name] = function (/** @type {any[]} */ ...given) {
        before?.apply(this, given)
        act()
    }
}

/**
 * True if an input is linked to another node.
 * @param {import("../../tests/web/comfy").Node} node
 * @param {string} name
 */
export function isLinked(node, name) {
    const slot = slotOf(node, name)
    return slot >= 0 && node.isInputConnected(slot)
}

/**
 * @param {import("../../tests/web/comfy").Node} node
 * @param {string} name
 */
function slotOf(node, name) {
    return node.inputs?.findIndex((input) => input.name === name) ?? -1
}

/**
 * @param {import("../../tests/web/comfy").Node} node
 * @param {string} name
 */
export function widgetOf(node, name) {
    return node.widgets?.find((widget) => widget.name === name)
}

/**
 * Sets a widget as a user does.
 * @param {import("../../tests/web/comfy").Node} node
 * @param {string} name
 * @param {any} value
 */
export function setWidget(node, name, value) {
    const widget = widgetOf(node, name)
    if (!widget || widget.value === value) return
    widget.value = value
    widget.callback?.(value)
    node.setDirtyCanvas(true, true)
}

/**
 * File in ComfyUI's input folder that a Load Audio behind an input has chosen. Empty if there is none.
 * @param {import("../../tests/web/comfy").Node} node
 * @param {string} name
 * @returns {string}
 */
export function sourceOf(node, name) {
    const slot = slotOf(node, name)
    const before = slot >= 0 && node.graph ? node.getInputNode(slot) : null // a new node is in no graph yet
    const chosen = before?.type === "LoadAudio" && widgetOf(before, "audio")?.value
    return typeof chosen === "string" ? chosen : ""
}

/**
 * Choice of the Higgs Load Model behind a node's input "model", also through LoRAs. Empty if there is none, ELSEWHERE
 * for a server.
 * @param {import("../../tests/web/comfy").Node} node
 * @returns {string}
 */
export function modelOf(node) {
    let loader = node
    for (let steps = 0; steps < 16; ++steps) {
        const slot = slotOf(loader, "model")
        const before = slot >= 0 && loader.graph ? loader.getInputNode(slot) : null // a new node is in no graph yet
        if (!before) break
        loader = before
    }
    if (loader.type === "HiggsTTSServer") return ELSEWHERE
    const chosen = loader === node ? "" : widgetOf(loader, "model")?.value
    return typeof chosen === "string" ? chosen : ""
}

/**
 * Adds an element below a node's widgets and makes room for it. It is as wide as the node, neither saved nor sent, and
 * has no row in the panel of properties.
 * @param {import("../../tests/web/comfy").Node} node
 * @param {string} name
 * @param {HTMLElement} element
 * @param {number} height CSS pixels, with a margin on either side
 * @param {number} [margin]
 */
export function addElement(node, name, element, height, margin = 10) {
    const widget = node.addDOMWidget(name, `higgs_tts_${name}`, element, {
        serialize: false,
        hideOnZoom: false,
        hideInPanel: true,
        margin,
        getValue: () => "",
        setValue() {},
    })
    widget.serialize = false
    // A panel that shows it anyway would set its own width here, and the canvas would use that.
    Object.defineProperty(widget, "width", { get: () => undefined, set() {} })
    widget.computeLayoutSize = undefined // else it would get a share of the node's free space
    widget.computeSize = () => [0, height]
    makeRoom(node)
    node.setDirtyCanvas(true, true)
}

/** Makes a node as large as its widgets need. @param {import("../../tests/web/comfy").Node} node */
export function makeRoom(node) {
    const [width, least] = node.computeSize()
    node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], least)])
}
