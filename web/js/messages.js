// Translates what ComfyUI's frontend shows of our nodes' work: errors, reports and progress. The server has them in
// English, as its log does.
import { api } from "./comfy.js"
import { nodeOf } from "./graph.js"
import { nameOf } from "./language.js"
import { say, translatedLines } from "./words.js"

// An error, which begins with its node's name. ComfyUI puts an input's before it.
const NAMED = /^([\w.]+ - )?(Higgs [\w ]+): (.+)$/s
const REPORT = /^(Model: |Details: |Warning: )/m

/**
 * @param {string} type of the node
 * @param {string} english
 */
function errorText(type, english) {
    const [, input = "", node, error] = english.match(NAMED) ?? []
    return node
        ? input + say("{node}: {error}", { node: nameOf(type) ?? node, error: translatedLines(error) })
        : english
}

/** Translates the errors of nodes that a prompt was refused for. @param {any} answer */
function translateRefusals(answer) {
    for (const { class_type, errors } of Object.values(answer?.node_errors ?? {})) {
        for (const error of class_type?.startsWith("HiggsTTS") ? errors : []) {
            error.details = errorText(class_type, error.details ?? "")
        }
    }
}

/** @param {CustomEvent} event a node has failed */
function onError({ detail }) {
    if (detail.node_type?.startsWith("HiggsTTS")) {
        detail.exception_message = errorText(detail.node_type, detail.exception_message ?? "")
    }
}

/** @param {CustomEvent} event a node has results, perhaps a text to show */
function onExecuted({ detail }) {
    const text = detail.output?.text
    if (Array.isArray(text)) detail.output.text = text.map((one) => (REPORT.test(one) ? translatedLines(one) : one))
}

/** @param {CustomEvent} event a line about a node that works */
function onProgress({ detail }) {
    if (nodeOf(String(detail.nodeId))?.type.startsWith("HiggsTTS")) detail.text = translatedLines(detail.text)
}

// These come before ComfyUI's own listeners, which show what the event holds by then.
for (const [type, listener] of /** @type {const} */ ([
    ["execution_error", onError],
    ["executed", onExecuted],
    ["progress_text", onProgress],
])) {
    api.addEventListener(type, listener, true)
}

const { queuePrompt } = api
api.queuePrompt = async function (...given) {
    try {
        const answer = await queuePrompt.apply(this, given)
        translateRefusals(answer)
        return answer
    } catch (error) {
        translateRefusals(/** @type {any} */ (error)?.response)
        throw error
    }
}
