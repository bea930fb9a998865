// Plays one sound: fetches samples ahead of playback, buffers if speech is slower, seeks and pauses.
import { isAllowed, latency, rest } from "./context.js"
import { makeOutput } from "./output.js"
import { interrupt } from "./server.js"
import { RATE } from "./times.js"
import { begin, end, forget, isHeard, isSilent, leave, wait } from "./turns.js"

const AHEAD = 10 * RATE // samples fetched ahead of playback
const MOST = 5 * RATE // samples fetched at a time
const PATIENCE = 1000 // ms before a failed request is repeated
const LONGEST_WAIT = 10 // maximum seconds buffered before playback
// Seconds to buffer before playback. ease: pace of speech over the growth of its first pieces. Below 1, a piece may
// take longer than all earlier ones last. Speech may slow down by a sixth while a page plays.
const GATHERED = [
    { ease: 2, seconds: 0.35 },
    { ease: 1, seconds: 0.6 },
    { ease: 0.85, seconds: 0.85 },
    { ease: 0.68, seconds: 1.5 },
    { ease: 0.54, seconds: 2.3 },
    { ease: 0, seconds: 3 },
]

/** @type {ReturnType<typeof makeOutput> | undefined} */
let output // of the audible player

/**
 * "waiting" for its turn, "buffering", "playing", "paused" or "ended".
 * @typedef {"waiting" | "buffering" | "playing" | "paused" | "ended"} Mode
 */

/** Dispatches "change" whenever anything shown may have changed. */
export class Player extends EventTarget {
    /** @type {Mode} */
    mode = "paused"
    isBlocked = false // by the browser, until the user clicks
    isSlow = false // it had to buffer during playback
    #from = 0 // sample at which the output started
    #fed = 0 // the next sample to fetch
    #isFetching = false
    #round = 0 // samples fetched for an earlier round are ignored

    /** @param {import("./sound.js").Sound} sound */
    constructor(sound) {
        super()
        this.sound = sound
        sound.addEventListener("change", () => this.#onNews())
        sound.addEventListener("restart", () => this.#onRestart())
    }

    /** Sample that is playing now. */
    get position() {
        return isHeard(this) && output ? this.#from + output.played : this.#from
    }

    /** Sample that leaves the loudspeaker now. */
    get audible() {
        if (this.mode !== "playing") return this.position
        return Math.max(this.#from, this.position - latency())
    }

    get isActive() {
        return this.mode === "playing" || this.mode === "buffering"
    }

    /** Plays once nothing else does. */
    playInTurn() {
        if (isSilent()) return this.play()
        wait(this)
        this.#set("waiting")
    }

    /** Plays at once, pausing any other sound. */
    async play() {
        begin(this)
        if (this.mode === "ended" || this.position >= this.sound.length) this.#from = 0
        this.#set("buffering")
        this.isBlocked = !(await isAllowed())
        if (!isHeard(this)) return
        if (this.isBlocked) this.pause()
        else await this.#begin(this.#from)
    }

    /** Plays from a sample on. @param {number} sample */
    async playFrom(sample) {
        await this.seek(sample)
        if (!this.isActive) await this.play()
    }

    pause() {
        this.#from = this.position
        this.#release("paused")
    }

    /** @param {number} sample */
    async seek(sample) {
        const at = Math.max(0, Math.min(Math.round(sample), this.sound.samples - 1))
        if (this.isActive) {
            this.#set("buffering")
            await this.#begin(at)
        } else {
            this.#from = at
            this.#set("paused")
        }
    }

    /** Stops at once, and cancels a pending start. */
    stop() {
        forget(this)
        if (this.mode !== "ended") this.pause()
    }

    /** Stops, and cancels the node that speaks. */
    async cancel() {
        this.stop()
        if (this.sound.state === "speaking") await interrupt(this.sound.run.prompt)
    }

    /** @param {number} at sample */
    async #begin(at) {
        const round = ++this.#round
        this.#from = this.#fed = at
        this.#isFetching = false
        output ??= makeOutput()
        await output.open({ onProgress: () => this.#onProgress(), onOver: () => this.#onOver() })
        if (round === this.#round && isHeard(this)) this.#feed()
    }

    /** @param {"paused" | "ended"} mode */
    #release(mode) {
        ++this.#round
        if (isHeard(this)) {
            output?.clear()
            rest()
        }
        leave(this)
        this.#set(mode)
    }

    /** @returns {Promise<void>} */
    async #feed() {
        if (this.#isFetching || !this.isActive) return
        if (this.#fed < Math.min(this.sound.samples, this.position + AHEAD)) {
            const round = this.#round
            const { revision } = this.sound
            this.#isFetching = true
            const wav = await this.sound.read(this.#fed, MOST).catch(() => {
                setTimeout(() => this.#feed(), PATIENCE) // the server is away; it may come back
            })
            if (round !== this.#round) return
            this.#isFetching = false
            if (revision !== this.sound.revision) return this.#feed() // the requested samples were replaced
            if (wav) {
                this.#fed += wav.length
                output?.push(wav)
                this.#goIfEnough()
                return this.#feed()
            }
        }
        this.#goIfEnough()
    }

    #goIfEnough() {
        if (this.mode !== "buffering") return
        const { state, samples } = this.sound
        const isAll = state !== "speaking" && (this.#fed >= samples || state === "gone")
        const gathered = (this.#fed - this.position) / RATE
        if (isAll && gathered <= 0) this.#end()
        else if (gathered > 0 && (isAll || gathered >= Math.min(this.#needed(), AHEAD / RATE))) {
            output?.go()
            this.#set("playing")
        }
    }

    /** Seconds to buffer so that playback need not stop again. */
    #needed() {
        const { expected, pace, piece, samples, delay, state } = this.sound
        if (state !== "speaking") return 0
        const ease = pace * (1 - piece / samples)
        const gathered = GATHERED.find((row) => ease >= row.ease)?.seconds ?? LONGEST_WAIT
        const missing = pace > 0 && pace < 1 ? (expected - this.#fed / RATE) * (1.2 / pace - 1) : 0
        return Math.min(LONGEST_WAIT, Math.max(gathered, missing, 4 * delay))
    }

    #onNews() {
        this.#feed()
        this.dispatchEvent(new Event("change"))
    }

    #onRestart() {
        this.#from = 0
        if (this.isActive) {
            this.#set("buffering")
            this.#begin(0)
        }
    }

    #onProgress() {
        this.#feed()
        this.dispatchEvent(new Event("change"))
    }

    #onOver() {
        if (this.mode !== "playing") return
        const { state, samples } = this.sound
        if (state !== "speaking" && this.#fed >= samples) return this.#end()
        this.isSlow = true
        this.#set("buffering")
        this.#feed()
    }

    #end() {
        this.#from = this.sound.samples
        this.#release("ended")
        end(this)
    }

    /** @param {Mode} mode */
    #set(mode) {
        this.mode = mode
        this.dispatchEvent(new Event("change"))
    }
}
