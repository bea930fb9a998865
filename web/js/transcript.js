// Has Higgs Transcribe write down a part of a recording, as a small run of its own in ComfyUI's queue.
import { api, app } from "./comfy.js"
import { widgetOf } from "./graph.js"
import { interrupt } from "./server.js"
import { say } from "./words.js"

const DOWNLOAD = "download: "
// No node of the page has these ids, so it shows nothing of the run on its nodes.
const [LOAD, WRITE, SHOW] = ["higgs-clip", "higgs-transcribe", "higgs-transcript"]

/** Choice of Whisper: that of a Higgs Transcribe in the open graph, else the first. */
export async function whisper() {
    const graph = app.rootGraph ?? app.graph
    const node = graph.nodes?.find((one) => one.type === "HiggsTTSTranscribe")
    const chosen = node && widgetOf(node, "whisper")?.value
    if (typeof chosen === "string" && chosen) return chosen
    const answer = await api.fetchApi("/object_info/HiggsTTSTranscribe")
    const [kind, options] = (await answer.json()).HiggsTTSTranscribe.input.required.whisper
    return String((Array.isArray(kind) ? kind : options.options)[0])
}

/** True if a choice must be downloaded first. @param {string} choice */
export function isDownload(choice) {
    return choice.startsWith(DOWNLOAD)
}

/** @param {any} told */
function refusalOf(told) {
    const errors = Object.values(told.node_errors ?? {}).flatMap((/** @type {any} */ { errors }) => errors ?? [])
    return errors[0]?.details || errors[0]?.message || told.error?.message || String(told.error)
}

/** Run that writes down a part. */
export class Transcription {
    /** @type {Map<string, string | Error>} results of runs by the prompt's id: one may end before its id is known */
    #results = new Map()
    #prompt = ""
    #onResult = () => {}

    /** @type {Record<string, (event: CustomEvent) => void>} */
    #listeners = {
        executed: ({ detail }) => detail.node === SHOW && this.#end(detail.prompt_id, detail.output?.text?.[0] ?? ""),
        execution_error: ({ detail }) => this.#end(detail.prompt_id, new Error(detail.exception_message.trim())),
        execution_interrupted: ({ detail }) => this.#end(detail.prompt_id, new Error(say("Stopped."))),
    }

    /**
     * @param {string} prompt
     * @param {string | Error} result
     */
    #end(prompt, result) {
        this.#results.set(prompt, result)
        this.#onResult()
    }

    /**
     * Words of a part. Throws an Error with the reason if the run fails or is stopped.
     * @param {import("./server.js").Part} part
     * @param {string} choice of Whisper
     * @returns {Promise<string>}
     */
    async words(part, choice) {
        for (const [type, listener] of Object.entries(this.#listeners)) api.addEventListener(type, listener)
        try {
            this.#prompt = await this.#queue(part, choice)
            while (!this.#results.has(this.#prompt)) {
                await new Promise((resolve) => (this.#onResult = () => resolve(undefined)))
            }
            const result = this.#results.get(this.#prompt)
            if (result instanceof Error) throw result
            return String(result)
        } finally {
            for (const [type, listener] of Object.entries(this.#listeners)) api.removeEventListener(type, listener)
        }
    }

    /**
     * @param {import("./server.js").Part} part
     * @param {string} choice
     */
    async #queue({ clip, start, length }, choice) {
        const listen = { audio: [LOAD, 0], whisper: choice, start, length }
        const prompt = {
            [LOAD]: { class_type: "LoadAudio", inputs: { audio: clip }, _meta: { title: "Load Audio" } },
            [WRITE]: { class_type: "HiggsTTSTranscribe", inputs: listen, _meta: { title: "Higgs Transcribe" } },
            [SHOW]: { class_type: "PreviewAny", inputs: { source: [WRITE, 0] }, _meta: { title: "Preview" } },
        }
        const answer = await post("/prompt", { prompt, client_id: api.clientId })
        const told = await answer.json()
        if (!answer.ok) throw new Error(refusalOf(told))
        return told.prompt_id
    }

    /** Ends the run, or takes it out of the queue. */
    async stop() {
        if (!this.#prompt) return
        await post("/queue", { delete: [this.#prompt] })
        await interrupt(this.#prompt)
        this.#end(this.#prompt, new Error(say("Stopped.")))
    }
}

/**
 * @param {string} route
 * @param {object} body
 */
function post(route, body) {
    return api.fetchApi(route, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(body),
    })
}
