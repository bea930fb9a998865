// The seed of a node: what it is, and how a take is kept by it.
import { isLinked } from "./graph.js"

/** @typedef {import("../../tests/web/comfy").Node} Node */

/**
 * @param {Node} node
 * @param {string} name
 */
function widgetOf(node, name) {
    return node.widgets?.find((widget) => widget.name === name)
}

/**
 * Whether the node's next run has this seed.
 * @param {Node} node
 * @param {number | null} seed
 */
export function hasSeed(node, seed) {
    const control = widgetOf(node, "control_after_generate")
    return widgetOf(node, "seed")?.value === seed && (!control || control.value === "fixed")
}

/** Why a seed cannot be written into a node; empty where it can. @param {Node} node */
export function problemOfSeed(node) {
    if (isLinked(node, "seed")) return "The seed comes from another node. Set it there."
    return widgetOf(node, "seed") ? "" : "This node has no seed."
}

/**
 * Writes a seed into a node, which keeps it from run to run.
 * @param {Node} node
 * @param {number} seed
 */
export function keepSeed(node, seed) {
    for (const [name, value] of /** @type {[string, any][]} */ ([
        ["seed", seed],
        ["control_after_generate", "fixed"],
    ])) {
        const widget = widgetOf(node, name)
        if (!widget) continue
        widget.value = value
        widget.callback?.(value)
    }
    node.setDirtyCanvas(true, true)
}
