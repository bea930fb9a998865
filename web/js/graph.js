// Nodes of the open graph, by the ids that the server uses: "7", or "12:7" for node 7 in the subgraph of node 12.
import { app } from "./comfy.js"

const ELSEWHERE = "(on a server)" // no checkpoint's name: nothing is known here of what it can
export const NO_ID = "00000000-0000-0000-0000-000000000000" // of a graph that was emptied: it gets one when it is opened again
const SPEAKERS = ["HiggsTTSSpeak", "HiggsTTSDialogue", "HiggsTTSLines", "HiggsTTSSubtitles"]

/** The id of the graph that is open; another workflow has another one. */
export function graphId() {
    return root().id
}

/**
 * The id of the graph that a workflow was sent from; undefined where it had none.
 * @param {string | null | undefined} workflow
 */
export function graphOf(workflow) {
    return workflow && workflow !== NO_ID ? workflow : undefined
}

function root() {
    return app.rootGraph ?? app.graph
}

/**
 * The node of this id and one of these types, if the open graph has it.
 * @param {string} id
 * @param {string[]} [types] default: those that speak
 */
export function speakerOf(id, types = SPEAKERS) {
    /** @type {import("../../tests/web/comfy").Graph | undefined} */
    let graph = root()
    let node
    for (const part of id.split(":")) {
        node = graph?.getNodeById(part) ?? graph?.getNodeById(Number(part))
        graph = node?.subgraph
    }
    return node && types.includes(node.type) ? node : undefined
}

/**
 * Whether another node gives the value of an input.
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
 * What Higgs Load Model is set to, of a node that has it at its input "model", also with LoRAs in between; empty where
 * there is none, and no checkpoint's name where a server speaks.
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
    const chosen = loader === node ? "" : loader.widgets?.find((widget) => widget.name === "model")?.value
    return typeof chosen === "string" ? chosen : ""
}

/**
 * Adds an element below a node's widgets, neither saved nor sent, and makes room for it. It is as wide as the node, and
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
    // A panel that draws it all the same would leave its own width here, for the canvas to take.
    Object.defineProperty(widget, "width", { get: () => undefined, set() {} })
    widget.computeLayoutSize = undefined // by which a widget shares a node's free room
    widget.computeSize = () => [0, height]
    const [width, least] = node.computeSize()
    node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], least)])
    node.setDirtyCanvas(true, true)
}
