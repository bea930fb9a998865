// Plays samples as consecutive buffers on the context's clock, for pages without AudioWorklet.
import { speaker } from "./context.js"
import { RATE } from "./times.js"

const LEAD = 0.05 // seconds from `go` to the first sample
const TICK = 50 // ms between checks of the clock

/** @typedef {import("./output.js").Listener} Listener */

export class ScheduledOutput {
    /** @type {Float32Array<ArrayBuffer>[]} */
    #waiting = []
    /** @type {{source: AudioBufferSourceNode, stop: number}[]} */
    #sources = []
    #began = 0 // clock time of the first sample since the last pause, in samples
    #before = 0 // samples played before that
    #scheduled = 0 // samples scheduled since the last pause
    #playing = false
    /** @type {ReturnType<typeof setInterval> | undefined} */
    #timer
    /** @type {Listener | undefined} */
    #listener

    /** Starts over, dropping all pushed samples. @param {Listener} listener */
    async open(listener) {
        this.clear()
        this.#listener = listener
    }

    clear() {
        clearInterval(this.#timer)
        for (const { source } of this.#sources) source.disconnect()
        this.#waiting = []
        this.#sources = []
        this.#before = this.#scheduled = 0
        this.#playing = false
    }

    /** @param {Float32Array<ArrayBuffer>} wav */
    push(wav) {
        this.#waiting.push(wav)
        if (this.#playing) this.#look() // it may be over
        if (this.#playing) this.#schedule()
    }

    /** Starts playing the pushed samples. */
    go() {
        if (this.#playing) return
        this.#playing = true
        this.#began = Math.ceil((speaker().context.currentTime + LEAD) * RATE)
        this.#scheduled = 0
        this.#schedule()
        this.#timer = setInterval(() => this.#look(), TICK)
    }

    /** Samples played since the last clear. */
    get played() {
        if (!this.#playing) return this.#before
        const now = Math.floor(speaker().context.currentTime * RATE) - this.#began
        return this.#before + Math.max(0, Math.min(now, this.#scheduled))
    }

    #schedule() {
        const { context, gain } = speaker()
        for (const wav of this.#waiting.splice(0)) {
            const buffer = new AudioBuffer({ length: wav.length, sampleRate: RATE })
            buffer.copyToChannel(wav, 0)
            const source = new AudioBufferSourceNode(context, { buffer })
            source.connect(gain)
            source.start((this.#began + this.#scheduled) / RATE)
            this.#scheduled += wav.length
            this.#sources.push({ source, stop: this.#scheduled })
        }
    }

    #look() {
        const heard = this.played - this.#before
        this.#sources = this.#sources.filter(({ stop }) => stop > heard)
        if (heard < this.#scheduled) {
            this.#listener?.onProgress()
            return
        }
        clearInterval(this.#timer)
        this.#before += this.#scheduled
        this.#scheduled = 0
        this.#playing = false
        this.#listener?.onOver()
    }
}
