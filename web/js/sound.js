// The sound of one run as this page knows it: how it stands and its outline. The samples stay on the server.
import { news, samples } from "./server.js"
import { RATE } from "./times.js"

export const FRAME = 960 // samples that one number of the outline stands for
const PATIENCE = 1000 // ms before the server is asked again when it does not answer

/** Dispatches "change" for whatever is new, "restart" where all before is void. */
export class Sound extends EventTarget {
    /** @param {import("./server.js").Run} run */
    constructor(run) {
        super()
        this.run = run
        /** @type {"speaking" | "complete" | "stopped" | "gone"} */
        this.state = "speaking"
        this.samples = 0
        this.piece = 0 // of the samples, those that came at once and last
        this.expected = 0 // seconds of the whole, as far as that is known
        this.done = 0 // seconds of it that are spoken, also where none can be heard yet
        this.left = 0 // seconds until all is spoken
        this.pace = 0 // seconds of each sequence that are spoken in a second
        this.problem = "" // why it stopped before its end, where the disk is full
        this.waited = 0 // and those that were spoken since anything new could be heard
        /** @type {string[]} why its beginning was spoken again */
        this.restarts = []
        this.outline = new Uint8Array(1024)
        this.drawn = 0 // numbers of the outline
        this.delay = 0 // seconds from a question to its answer, when that is there
        this.version = -1
        this.revision = 0
    }

    /** Samples of the whole, as far as that is known. */
    get length() {
        return this.state === "speaking" ? Math.max(this.samples, this.expected * RATE) : this.samples
    }

    /** Asks until all of it is there. */
    async follow() {
        while (this.state === "speaking") {
            let told
            try {
                told = await news(this.run.id, this.version, this.revision, this.drawn)
            } catch {
                await new Promise((resolve) => setTimeout(resolve, PATIENCE)) // the server is away; it may come back
                continue
            }
            if (told) this.#take(told)
            else this.state = "gone"
            this.dispatchEvent(new Event("change"))
        }
    }

    /** @param {import("./server.js").News} told */
    #take(told) {
        const begunAnew = told.restarts.length > this.restarts.length
        this.state = told.state
        this.problem = told.problem
        this.samples = told.samples
        this.piece = told.piece
        this.expected = told.expected
        this.done = told.done
        this.left = told.left
        this.pace = told.pace
        this.waited = told.waited
        this.restarts = told.restarts
        this.version = told.version
        this.revision = told.revision
        this.#draw(told.first, told.outline)
        if (begunAnew) this.dispatchEvent(new Event("restart"))
    }

    /**
     * @param {number} first
     * @param {string} outline two hexadecimal digits a number
     */
    #draw(first, outline) {
        const count = outline.length / 2
        if (first + count > this.outline.length) {
            const longer = new Uint8Array(2 * (first + count))
            longer.set(this.outline.subarray(0, first))
            this.outline = longer
        }
        for (let at = 0; at < count; ++at) {
            this.outline[first + at] = parseInt(outline.slice(2 * at, 2 * at + 2), 16)
        }
        this.drawn = first + count
    }

    /**
     * Samples from `start`, at most `count`; null where there are none now.
     * @param {number} start
     * @param {number} count
     */
    async read(start, count) {
        const stop = Math.min(start + count, this.samples)
        const revision = this.revision
        if (start >= stop) return null
        const began = performance.now()
        const wav = await samples(this.run.id, revision, start, stop)
        this.delay = (performance.now() - began) / 1000
        if (!wav && revision === this.revision && this.state !== "speaking") {
            this.state = "gone"
            this.dispatchEvent(new Event("change"))
        }
        return revision === this.revision ? wav : null
    }
}
