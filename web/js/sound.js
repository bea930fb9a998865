// State and outline of one run's sound in this page. The samples stay on the server.
import { news, samples } from "./server.js"
import { RATE } from "./times.js"

export const FRAME = 960 // samples per number of the outline
const PATIENCE = 1000 // ms before a failed request is repeated

/** Dispatches "change" for news, and "restart" if all earlier sound is void. */
export class Sound extends EventTarget {
    /** @param {import("./server.js").Run} run */
    constructor(run) {
        super()
        this.run = run
        /** @type {"speaking" | "complete" | "stopped" | "gone"} */
        this.state = "speaking"
        this.samples = 0
        this.piece = 0 // number of samples in the last delivery
        this.expected = 0 // estimated seconds of the whole
        this.done = 0 // seconds spoken, including those not audible yet
        this.left = 0 // seconds until all is spoken
        this.pace = 0 // seconds of each sequence spoken per second
        this.speed = 0 // seconds of all sequences spoken per second
        this.file = "" // name of the result for a download, once there is one
        this.problem = "" // why it ended early, such as a full disk
        this.waited = 0 // seconds of each sequence spoken since the last delivery
        /** @type {string[]} reasons why its beginning was spoken again */
        this.restarts = []
        this.outline = new Uint8Array(1024)
        this.drawn = 0 // numbers of the outline
        this.delay = 0 // seconds that a request takes
        this.version = -1
        this.revision = 0
        /** @type {import("./heard_word.js").Word[]} of complete chunks; another array for every change */
        this.words = []
        this.edition = 0 // of the words
    }

    /** Estimated samples of the whole. */
    get length() {
        return this.state === "speaking" ? Math.max(this.samples, this.expected * RATE) : this.samples
    }

    /** Polls until the sound is complete. */
    async follow() {
        while (this.state === "speaking") {
            let told
            try {
                const { version, revision, drawn, edition, words } = this
                told = await news(this.run.id, { version, revision, outline: drawn, edition, words: words.length })
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
        this.file = told.file
        this.samples = told.samples
        this.piece = told.piece
        this.expected = told.expected
        this.done = told.done
        this.left = told.left
        this.pace = told.pace
        this.speed = told.speed
        this.waited = told.waited
        this.restarts = told.restarts
        this.version = told.version
        this.revision = told.revision
        this.#draw(told.first, told.outline)
        if (told.edition !== this.edition || told.words.length) {
            this.edition = told.edition
            this.words = [...this.words.slice(0, told.known), ...told.words]
        }
        if (begunAnew) this.dispatchEvent(new Event("restart"))
    }

    /**
     * @param {number} first
     * @param {string} outline two hexadecimal digits per number
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
     * At most `count` samples from `start`. Null if there are none now.
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
