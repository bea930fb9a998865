// The pack's routes on ComfyUI's server.
import { api } from "./comfy.js"

/**
 * Playable run of a node. workflow: the graph's id, if the queueing page sent one; seed: reproduces the sound, null if
 * none does; said: beginning of its text; digest: of its whole text, see digest.js; retakes: sentences taken again, see
 * retake_counts.js; doubts: about its voices.
 * @typedef {{id: string, node: string, prompt: string, workflow: string | null, seed: number | null, said: string,
 *     digest: number, retakes: string, doubts?: string[]}} Run
 */

/**
 * State of a run's sound; see LiveSound.told in nodes/page/live_sound.py.
 * @typedef {Run & {version: number, revision: number, state: "speaking" | "complete" | "stopped", problem: string,
 *     restarts: string[], samples: number, piece: number, expected: number, done: number, left: number, pace: number,
 *     speed: number, waited: number, first: number, outline: string, edition: number, known: number, file: string,
 *     words: import("./heard_word.js").Word[]}} News
 */

/**
 * @param {string} route
 * @param {RequestInit} [options]
 * @returns {Promise<Response | null>} null if the server no longer has it
 */
async function ask(route, options) {
    const answer = await api.fetchApi(`/higgs_tts/${route}`, options)
    if (answer.status === 404 || answer.status === 204) return null
    if (answer.ok) return answer
    throw new Error(`Higgs TTS: ${(await answer.json()).error}`)
}

/**
 * Tells the server whether this page plays while a node speaks.
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
 * Runs of this page, oldest first, and those of the open workflow whose own page was closed.
 * @param {string} client
 * @param {string} [workflow]
 * @returns {Promise<Run[]>}
 */
export async function runs(client, workflow = "") {
    const answer = await ask(`runs?${new URLSearchParams({ client, workflow })}`)
    return answer ? answer.json() : []
}

/**
 * State of a sound, once it is no longer `version` or after some seconds. Null if it is no longer kept.
 * @param {string} id
 * @param {{version: number, revision: number, outline: number, edition: number, words: number}} known outline, words:
 *     how many are known
 * @returns {Promise<News | null>}
 */
export async function news(id, known) {
    const answer = await ask(`runs/${id}?${new URLSearchParams(Object.entries(known).map(([n, v]) => [n, String(v)]))}`)
    return answer && answer.json()
}

/**
 * Samples start..stop as far as they exist. Null if the sound has changed or is no longer kept.
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
 * URL of a finished run's result.
 * @param {string} id
 */
export function resultAddress(id) {
    return api.apiURL(`/higgs_tts/runs/${id}/file`)
}

/**
 * Voice of the library. problem: why it does not work with the model, empty if it does.
 * @typedef {{name: string, seconds: number, transcript: string, problem: string}} Voice
 */

const GATHER = 50 // ms to collect requests, since all nodes of a workflow ask at once

/** @type {Map<string, Promise<Voice[]>>} model -> pending request */
const gathered = new Map()

/**
 * All voices, checked for a model as Higgs Load Model calls it. Simultaneous calls share one request, sent after the
 * last of them.
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
 * URL of a voice's sound.
 * @param {string} name
 */
export function voiceAddress(name) {
    return api.apiURL(`/higgs_tts/voice?name=${encodeURIComponent(name)}`)
}

/**
 * Recording in ComfyUI's input folder. outline: peaks from 0 to 1.
 * @typedef {{seconds: number, outline: number[]}} Recording
 */

/**
 * Part of a recording, as the inputs of Higgs Voice.
 * @typedef {{clip: string, start: number, length: number}} Part
 */

/**
 * Property of a clip; see `ClipCheck` in engine/voice/reference.py.
 * @typedef {{name: string, shown: string, verdict: "good" | "fair" | "poor", advice: string}} ClipCheck
 */

/**
 * Answer of a route. Throws an Error with the server's reason if it refuses.
 * @param {string} route
 * @param {object} [body]
 */
async function answerOf(route, body) {
    const sent = body && {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body),
    }
    const answer = await api.fetchApi(`/higgs_tts/${route}`, sent)
    const told = await answer.json()
    if (!answer.ok) throw new Error(told.error)
    return told
}

/**
 * @param {string} name
 * @returns {Promise<Recording>}
 */
export async function recordingOf(name) {
    const { seconds, outline } = await answerOf(`clip?${new URLSearchParams({ name })}`)
    const digits = /** @type {string[]} */ (outline.match(/../g) ?? [])
    return { seconds, outline: digits.map((pair) => parseInt(pair, 16) / 255) }
}

/**
 * What a part is good for, and why the transcript cannot fit.
 * @param {Part} part
 * @param {string} transcript
 * @returns {Promise<{seconds: number, checks: ClipCheck[], misfit: string}>}
 */
export function checksOf(part, transcript) {
    return answerOf("clip/checks", { ...part, transcript })
}

/**
 * Saves a part as a voice. Returns the name of its file.
 * @param {Part} part
 * @param {string} transcript
 * @param {string} name
 * @returns {Promise<string>}
 */
export async function saveVoice(part, transcript, name) {
    return (await answerOf("clip/save", { ...part, transcript, name })).name
}

/**
 * URL of a part's sound.
 * @param {Part} part
 */
export function partAddress({ clip, start, length }) {
    const query = new URLSearchParams({ name: clip, start: String(start), length: String(length) })
    return api.apiURL(`/higgs_tts/clip/sound?${query}`)
}

/**
 * Tags of a kind: their place in a text, and the reason if a tag has no effect.
 * @typedef {{name: string, place: string, tags: [string, string][]}} TagGroup
 */

/**
 * Tags of a model as Higgs Load Model calls it.
 * @param {string} model
 * @returns {Promise<TagGroup[]>}
 */
export async function tagsOf(model) {
    const answer = await ask(`tags?model=${encodeURIComponent(model)}`)
    return answer ? answer.json() : []
}

/**
 * Hints on a text; see `look` in nodes/page/written_text.py.
 * @typedef {{seconds: number | null, hints: import("./tokens.js").Hint[], notes: string[], names: string[],
 *     said: import("./tokens.js").Said[]}} Look
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
    return answer.ok ? told : { seconds: null, hints: [], notes: [told.error], names: [], said: [] }
}

/**
 * Sheet of lines with a seed set for one row. Throws an Error with the reason if that is not possible.
 * @param {string} lines
 * @param {string} id
 * @param {number} seed
 * @returns {Promise<string>}
 */
export async function withSeed(lines, id, seed) {
    return (await answerOf("lines", { lines, id, seed })).lines
}

/**
 * URL of a file in ComfyUI's output folder.
 * @param {{filename: string, subfolder: string, version: string}} file
 */
export function outputAddress({ filename, subfolder, version }) {
    return api.apiURL(`/view?${new URLSearchParams({ filename, subfolder, type: "output", version })}`)
}

/**
 * Cancels a running prompt.
 * @param {string} prompt
 */
export async function interrupt(prompt) {
    await api.fetchApi("/interrupt", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ prompt_id: prompt }),
    })
}
