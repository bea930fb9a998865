// Plays samples through an AudioWorklet, which a busy page cannot interrupt. Needs HTTPS or localhost.
import { speaker } from "./context.js"
import { RATE } from "./times.js"

// Code of the worklet, as a string: ComfyUI imports every file in web/ into the page, where it would fail.
const PROCESSOR = `
class Output extends AudioWorkletProcessor {
    constructor() {
        super()
        this.clear(0)
        this.port.onmessage = ({ data }) => {
            if (data.clear) this.clear(data.round)
            if (data.wav) this.parts.push(data.wav)
            if (data.go) this.playing = true
        }
    }

    clear(round) {
        this.round = round
        this.parts = []
        this.at = this.played = this.blocks = 0
        this.playing = false
    }

    process(_, [[out]]) {
        if (!this.playing) return true
        let filled = 0
        while (filled < out.length && this.parts.length) {
            const part = this.parts[0]
            const count = Math.min(out.length - filled, part.length - this.at)
            out.set(part.subarray(this.at, this.at + count), filled)
            filled += count
            this.at += count
            if (this.at === part.length) {
                this.parts.shift()
                this.at = 0
            }
        }
        this.played += filled
        const isOver = filled < out.length
        if (isOver || this.blocks++ % 8 === 0) {
            const time = currentTime + out.length / sampleRate
            this.port.postMessage({ round: this.round, played: this.played, time, isOver })
        }
        if (isOver) {
            this.playing = false
            this.blocks = 0
        }
        return true
    }
}
registerProcessor("higgs-tts-output", Output)
`

/** @type {Promise<AudioWorkletNode> | undefined} */
let made

async function makeNode() {
    const { context, gain } = speaker()
    const address = URL.createObjectURL(new Blob([PROCESSOR], { type: "text/javascript" }))
    try {
        await context.audioWorklet.addModule(address)
    } finally {
        URL.revokeObjectURL(address)
    }
    const node = new AudioWorkletNode(context, "higgs-tts-output", { numberOfInputs: 0, outputChannelCount: [1] })
    node.connect(gain)
    return node
}

/** @typedef {import("./output.js").Listener} Listener */

export class WorkletOutput {
    #round = 0 // messages of an earlier round are ignored
    #played = 0 // at the last message
    #time = 0 // clock time of the sample after that; 0 if nothing plays
    #pushed = 0
    /** @type {AudioWorkletNode | undefined} */
    #node
    /** @type {Listener | undefined} */
    #listener

    /** Starts over, dropping all pushed samples. @param {Listener} listener */
    async open(listener) {
        this.clear()
        this.#listener = listener
        const round = this.#round
        this.#node = await (made ??= makeNode())
        this.#node.port.onmessage = ({ data }) => {
            if (data.round !== this.#round) return
            this.#played = data.played
            this.#time = data.isOver ? 0 : data.time
            if (data.isOver) this.#listener?.onOver()
            else this.#listener?.onProgress()
        }
        if (round === this.#round) this.#node.port.postMessage({ clear: true, round })
    }

    clear() {
        this.#played = this.#time = this.#pushed = 0
        this.#node?.port.postMessage({ clear: true, round: ++this.#round })
    }

    /** @param {Float32Array<ArrayBuffer>} wav */
    push(wav) {
        this.#pushed += wav.length
        this.#node?.port.postMessage({ wav }, [wav.buffer])
    }

    /** Starts playing the pushed samples. */
    go() {
        this.#node?.port.postMessage({ go: true })
    }

    /** Samples played since the last clear. */
    get played() {
        if (!this.#time) return this.#played
        const since = Math.round((speaker().context.currentTime - this.#time) * RATE)
        return Math.min(this.#played + Math.max(0, since), this.#pushed)
    }
}
