// Sound file played from the server.
import { volume, volumeChanges } from "./context.js"
import { begin, end, isHeard, leave } from "./turns.js"

/** Dispatches "change" when it starts or ends, "error" if it cannot be played. */
export class Clip extends EventTarget {
    /** @type {HTMLAudioElement | null} */
    #audio = null

    /** @param {string} address */
    constructor(address) {
        super()
        this.address = address
    }

    get isPlaying() {
        return isHeard(this)
    }

    /** Plays from the beginning, or stops. */
    toggle() {
        if (this.isPlaying) this.stop()
        else this.play()
    }

    play() {
        begin(this)
        const audio = (this.#audio = new Audio(this.address))
        this.#setVolume()
        volumeChanges.addEventListener("change", this.#setVolume)
        audio.addEventListener("ended", () => this.stop())
        audio.addEventListener("error", () => {
            if (audio !== this.#audio) return
            this.stop()
            this.dispatchEvent(new Event("error"))
        })
        audio.play().catch(() => {}) // stopped before it started
        this.dispatchEvent(new Event("change"))
    }

    /** Stops, because something else plays now. */
    pause() {
        leave(this)
        volumeChanges.removeEventListener("change", this.#setVolume)
        this.#audio?.pause()
        this.#audio = null
        this.dispatchEvent(new Event("change"))
    }

    stop() {
        if (!this.isPlaying) return
        this.pause()
        end(this)
    }

    #setVolume = () => {
        if (this.#audio) this.#audio.volume = volume
    }
}
