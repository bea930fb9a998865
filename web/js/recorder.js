// Records the microphone as samples of one channel. Browsers allow it at HTTPS and localhost only.
import { say } from "./words.js"

const MOST = 60 // seconds
const BLOCK = 2048 // samples per message, about 25 a second

// Code of the worklet, as a string: ComfyUI imports every file in web/ into the page, where it would fail.
const PROCESSOR = `
class Input extends AudioWorkletProcessor {
    block = new Float32Array(${BLOCK})
    filled = 0

    process([[wav]]) {
        for (const sample of wav ?? []) {
            this.block[this.filled++] = sample
            if (this.filled === this.block.length) {
                this.port.postMessage(this.block)
                this.filled = 0
            }
        }
        return true
    }
}
registerProcessor("higgs-tts-input", Input)
`

/** @param {unknown} error */
function reasonOf(error) {
    const name = error instanceof Error ? error.name : ""
    if (name === "NotAllowedError") return say("The browser refused the microphone. Allow it for this page.")
    if (name === "NotFoundError") return say("No microphone was found.")
    return say("The microphone cannot be used: {reason}", { reason: String(error) })
}

/** Dispatches "level" for every block, and "full" when it has recorded as much as it may. */
export class Recorder extends EventTarget {
    /** @type {Float32Array[]} */
    blocks = []
    level = 0 // peak of the last block
    /** @type {number[]} peak of each block */
    peaks = []

    /**
     * @param {MediaStream} stream
     * @param {AudioContext} context
     */
    constructor(stream, context) {
        super()
        this.stream = stream
        this.context = context
    }

    /** Begins to record, once the user allows it. Throws an Error with the reason if that is not possible. */
    static async open() {
        if (!navigator.mediaDevices) {
            throw new Error(say("Browsers allow the microphone only if ComfyUI is at https or localhost."))
        }
        // A voice as it is: what makes calls clear changes it.
        const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false }
        const stream = await navigator.mediaDevices.getUserMedia({ audio }).catch((error) => {
            throw new Error(reasonOf(error))
        })
        const recorder = new Recorder(stream, new AudioContext())
        try {
            await recorder.#listen()
        } catch (error) {
            recorder.#close()
            throw new Error(reasonOf(error))
        }
        return recorder
    }

    async #listen() {
        const address = URL.createObjectURL(new Blob([PROCESSOR], { type: "text/javascript" }))
        try {
            await this.context.audioWorklet.addModule(address)
        } finally {
            URL.revokeObjectURL(address)
        }
        const node = new AudioWorkletNode(this.context, "higgs-tts-input", { numberOfOutputs: 0 })
        node.port.onmessage = ({ data }) => {
            this.blocks.push(data)
            this.level = data.reduce((/** @type {number} */ most, /** @type {number} */ one) => {
                return Math.max(most, Math.abs(one))
            }, 0)
            this.peaks.push(this.level)
            this.dispatchEvent(new Event(this.seconds < MOST ? "level" : "full"))
        }
        this.context.createMediaStreamSource(this.stream).connect(node)
        await this.context.resume()
    }

    get seconds() {
        return (this.blocks.length * BLOCK) / this.context.sampleRate
    }

    /** Ends, and returns a WAV file of 16 bits. */
    stop() {
        const rate = this.context.sampleRate
        this.#close()
        const bytes = 2 * BLOCK * this.blocks.length
        const view = new DataView(new ArrayBuffer(44 + bytes))
        const text = (/** @type {number} */ at, /** @type {string} */ letters) => {
            for (let i = 0; i < letters.length; ++i) view.setUint8(at + i, letters.charCodeAt(i))
        }
        text(0, "RIFF")
        view.setUint32(4, 36 + bytes, true)
        text(8, "WAVEfmt ")
        view.setUint32(16, 16, true) // size of the format
        view.setUint16(20, 1, true) // PCM
        view.setUint16(22, 1, true) // channels
        view.setUint32(24, rate, true)
        view.setUint32(28, 2 * rate, true)
        view.setUint16(32, 2, true)
        view.setUint16(34, 16, true)
        text(36, "data")
        view.setUint32(40, bytes, true)
        let at = 44
        for (const block of this.blocks) {
            for (const sample of block) {
                view.setInt16(at, Math.round(32767 * Math.max(-1, Math.min(1, sample))), true)
                at += 2
            }
        }
        const time = new Date(Date.now() - 60_000 * new Date().getTimezoneOffset()).toISOString()
        const name = `recording ${time.slice(0, 19).replace("T", " ").replaceAll(":", ".")}.wav`
        return new File([view.buffer], name, { type: "audio/wav" })
    }

    #close() {
        for (const track of this.stream.getTracks()) track.stop()
        this.context.close()
    }
}
