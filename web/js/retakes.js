// Takes a sentence again by a node's widget "retakes": "3:1, 7:2" is the third sentence once, and the seventh twice.
import { app } from "./comfy.js"
import { digestOf } from "./digest.js"
import { isLinked, setWidget, widgetOf } from "./graph.js"
import { hasSeed, keepSeed, problemOfSeed } from "./seed.js"
import { once } from "./retake_counts.js"
import { say } from "./words.js"

/** @typedef {import("../../tests/web/comfy").Node} Node */

const TEXTS = ["text", "script", "seed"] // widgets that decide what the numbers mean

/** @type {WeakMap<Node, {sentence: number, seed: number | null, retakes: string}>} what was asked for last */
const asked = new WeakMap()

/** True if a node can take sentences again. @param {Node} node */
export function hasRetakes(node) {
    return widgetOf(node, "retakes") !== undefined
}

/**
 * True if the node's own text differs from a run's. Another node's text is not known here.
 * @param {Node} node
 * @param {import("./server.js").Run} run
 */
function hasOtherText(node, { digest }) {
    const widget = widgetOf(node, "text") ?? widgetOf(node, "script")
    return widget !== undefined && !isLinked(node, widget.name) && digestOf(widget.value) !== digest
}

/**
 * A run's retakes, none if the node has another text: the numbers would mean other sentences.
 * @param {Node} node
 * @param {import("./server.js").Run} run
 */
function retakesOf(node, run) {
    return run.retakes && hasOtherText(node, run) ? "" : run.retakes
}

/**
 * True if the node's next run has a run's retakes.
 * @param {Node} node
 * @param {import("./server.js").Run} run
 */
export function hasRetakesOf(node, run) {
    return (widgetOf(node, "retakes")?.value ?? "") === retakesOf(node, run)
}

/**
 * Writes a run's retakes into a node.
 * @param {Node} node
 * @param {import("./server.js").Run} run
 */
export function keepRetakes(node, run) {
    setWidget(node, "retakes", retakesOf(node, run))
}

/**
 * Reason why no sentence of a run can be taken again, empty if it can.
 * @param {Node} node
 * @param {import("./server.js").Run} run
 */
export function problemOfRetakes(node, run) {
    if (run.seed === null) return say("This run cannot be repeated from its seed alone.")
    if (isLinked(node, "retakes")) return say("The retakes come from another node. Set them there.")
    if (widgetOf(node, "check")?.value === false) return say("Turn on check to take sentences again.")
    if (hasOtherText(node, run)) return say("The text has changed. Run the node again.")
    return problemOfSeed(node)
}

/**
 * Takes a sentence of a run again, and queues that.
 * @param {Node} node
 * @param {import("./server.js").Run} run
 * @param {number} sentence
 */
export function takeAgain(node, run, sentence) {
    if (run.seed === null) return
    const before = hasSeed(node, run.seed) ? String(widgetOf(node, "retakes")?.value ?? "") : run.retakes
    const retakes = once(before, sentence)
    keepSeed(node, run.seed)
    setWidget(node, "retakes", retakes)
    asked.set(node, { sentence, seed: run.seed, retakes })
    app.queuePrompt(0, 1)
}

/**
 * Returns and forgets the sentence for which a run was queued, if any: later runs may have the same retakes.
 * @param {Node} node
 * @param {import("./server.js").Run} run
 */
export function sentenceOf(node, run) {
    const was = asked.get(node)
    if (was?.seed !== run.seed || was.retakes !== run.retakes) return undefined
    asked.delete(node)
    return was.sentence
}

app.registerExtension({
    name: "HiggsTTS.Retakes",
    nodeCreated(node) {
        if (!hasRetakes(node)) return
        for (const widget of node.widgets ?? []) {
            if (!TEXTS.includes(widget.name)) continue
            let before = widget.value
            const callback = widget.callback
            widget.callback = function (value, ...rest) {
                const answer = callback?.call(this, value, ...rest)
                if (widget.value !== before) setWidget(node, "retakes", "") // the numbers mean other sentences now
                before = widget.value
                return answer
            }
        }
    },
})
