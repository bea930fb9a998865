// Reads a node's seed, and keeps a take by it.
import { isLinked, setWidget, widgetOf } from "./graph.js"
import { say } from "./words.js"

/** @typedef {import("../../tests/web/comfy").Node} Node */

/**
 * True if the node's next run has this seed.
 * @param {Node} node
 * @param {number | null} seed
 */
export function hasSeed(node, seed) {
    const control = widgetOf(node, "control_after_generate")
    return widgetOf(node, "seed")?.value === seed && (!control || control.value === "fixed")
}

/** Reason why a seed cannot be written into a node, empty if it can. @param {Node} node */
export function problemOfSeed(node) {
    if (isLinked(node, "seed")) return say("The seed comes from another node. Set it there.")
    return widgetOf(node, "seed") ? "" : say("This node has no seed.")
}

/**
 * Writes a seed into a node and keeps it fixed.
 * @param {Node} node
 * @param {number} seed
 */
export function keepSeed(node, seed) {
    setWidget(node, "seed", seed)
    setWidget(node, "control_after_generate", "fixed")
}
