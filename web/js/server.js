// The pack's routes on ComfyUI's server.
import { api } from "./comfy.js"

/**
 * A run of a node that can be heard. workflow: the graph's id, where the page that queued it sent one; seed: that gives
 * the same sound again, if one does; said: how its text begins.
 * @typedef {{id: string, node: string, prompt: string, workflow: string | null, seed: number | null, said: string}} Run
 */

/**
 * How the sound of a run stands; see LiveSound.told in nodes/page/live_sound.py.
 * @typedef {Run & {version: number, revision: number, state: "speaking" | "complete" | "stopped", problem: string,
 *     restarts: string[], samples: number, piece: number, expected: number, done: number, left: number, pace: number,
 *     waited: number, first: number, outline: string}} News
 */

/**
 * @param {string} route
 * @param {RequestInit} [options]
 * @returns {Promise<Response | null>} null if the server does not have it any more
 */
async function ask(route, options) {
    const answer = await api.fetchApi(`/higgs_tts/${route}`, options)
    if (answer.status === 404 || answer.status === 204) return null
    if (answer.ok) return answer
    throw new Error(`Higgs TTS: ${(await answer.json()).error}`)
}

/**
 * Whether this page plays while a node speaks.
 * @param {string} client
 * @param {boolean} on
 */
export async function listen(client, on) {
    await ask("listen", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ client, on }),
    })
}

/**
 * The runs of this page, the oldest first; with them those of an open workflow whose own page was closed.
 * @param {string} client
 * @param {string} [workflow]
 * @returns {Promise<Run[]>}
 */
export async function runs(client, workflow = "") {
    const answer = await ask(`runs?${new URLSearchParams({ client, workflow })}`)
    return answer ? answer.json() : []
}

/**
 * How a sound stands, once it is no longer `version`, or after some seconds; null where it is not kept any more.
 * @param {string} id
 * @param {number} version
 * @param {number} revision
 * @param {number} outline numbers of the outline that are known
 * @returns {Promise<News | null>}
 */
export async function news(id, version, revision, outline) {
    const answer = await ask(`runs/${id}?version=${version}&revision=${revision}&outline=${outline}`)
    return answer && answer.json()
}

/**
 * Samples start..stop as far as they are there; null where the sound has changed or is not kept any more.
 * @param {string} id
 * @param {number} revision
 * @param {number} start
 * @param {number} stop
 * @returns {Promise<Float32Array<ArrayBuffer> | null>}
 */
export async function samples(id, revision, start, stop) {
    const answer = await ask(`runs/${id}/samples?revision=${revision}&start=${start}&stop=${stop}`)
    if (!answer) return null
    const view = new DataView(await answer.arrayBuffer())
    const wav = new Float32Array(view.byteLength / 2)
    for (let at = 0; at < wav.length; ++at) wav[at] = view.getInt16(2 * at, true) / 32767
    return wav
}

/**
 * A voice of the library; problem: why it cannot be used with the model, empty where it can.
 * @typedef {{name: string, seconds: number, transcript: string, problem: string}} Voice
 */

const GATHER = 50 // ms before voices are asked for: all nodes of a workflow ask at once

/** @type {Map<string, Promise<Voice[]>>} by the model, what is about to be asked */
const gathered = new Map()

/**
 * All voices, judged for a model as Higgs Load Model calls it. Who asks at about the same time gets the same answer, which
 * is as they are after the question.
 * @param {string} model
 * @returns {Promise<Voice[]>}
 */
export function voices(model) {
    let answer = gathered.get(model)
    if (!answer) gathered.set(model, (answer = voicesSoon(model)))
    return answer
}

/**
 * @param {string} model
 * @returns {Promise<Voice[]>}
 */
async function voicesSoon(model) {
    await new Promise((resolve) => setTimeout(resolve, GATHER))
    gathered.delete(model)
    const answer = await ask(`voices?model=${encodeURIComponent(model)}`)
    return answer ? answer.json() : []
}

/**
 * Where a voice can be heard.
 * @param {string} name
 */
export function voiceAddress(name) {
    return api.apiURL(`/higgs_tts/voice?name=${encodeURIComponent(name)}`)
}

/**
 * Tags of a kind: where in a text they go, and each with why it does nothing here, or nothing.
 * @typedef {{name: string, place: string, tags: [string, string][]}} TagGroup
 */

/**
 * The tags of a model as Higgs Load Model calls it.
 * @param {string} model
 * @returns {Promise<TagGroup[]>}
 */
export async function tagsOf(model) {
    const answer = await ask(`tags?model=${encodeURIComponent(model)}`)
    return answer ? answer.json() : []
}

/**
 * What there is to tell of a text; see `look` in nodes/page/written_text.py.
 * @typedef {{seconds: number | null, hints: import("./tokens.js").Hint[], notes: string[], names: string[]}} Look
 */

/**
 * @param {string} kind
 * @param {string} text
 * @param {string} model
 * @param {Record<string, number>} settings
 * @returns {Promise<Look>}
 */
export async function lookAt(kind, text, model, settings) {
    const answer = await api.fetchApi("/higgs_tts/text", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ kind, text, model, settings }),
    })
    const told = await answer.json()
    return answer.ok ? told : { seconds: null, hints: [], notes: [told.error], names: [] }
}

/**
 * A sheet of lines with a seed for one row. Raises an error that says why where that cannot be.
 * @param {string} lines
 * @param {string} id
 * @param {number} seed
 * @returns {Promise<string>}
 */
export async function withSeed(lines, id, seed) {
    const answer = await api.fetchApi("/higgs_tts/lines", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ lines, id, seed }),
    })
    const told = await answer.json()
    if (!answer.ok) throw new Error(told.error)
    return told.lines
}

/**
 * Where a file in ComfyUI's output folder can be heard.
 * @param {{filename: string, subfolder: string, version: string}} file
 */
export function outputAddress({ filename, subfolder, version }) {
    return api.apiURL(`/view?${new URLSearchParams({ filename, subfolder, type: "output", version })}`)
}

/**
 * Cancels a prompt that runs.
 * @param {string} prompt
 */
export async function interrupt(prompt) {
    await api.fetchApi("/interrupt", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ prompt_id: prompt }),
    })
}
