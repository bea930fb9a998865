// A sound file that is played from the server, one at a time.
import { pausePlaying } from "./player.js"

/** @type {Clip | null} */
let playing = null

/** Dispatches "change" when it begins or ends. */
export class Clip extends EventTarget {
    /** @type {HTMLAudioElement | null} */
    #audio = null

    /** @param {string} address */
    constructor(address) {
        super()
        this.address = address
    }

    get isPlaying() {
        return playing === this
    }

    /** Plays from the beginning, or stops. */
    toggle() {
        if (this.isPlaying) return this.stop()
        playing?.stop()
        pausePlaying()
        playing = this
        this.#audio = new Audio(this.address)
        for (const type of ["ended", "error"]) this.#audio.addEventListener(type, () => this.stop())
        this.#audio.play().catch(() => {}) // stopped before it began
        this.dispatchEvent(new Event("change"))
    }

    stop() {
        if (playing !== this) return
        playing = null
        this.#audio?.pause()
        this.#audio = null
        this.dispatchEvent(new Event("change"))
    }
}
