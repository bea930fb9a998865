// Waveform of a recording with two handles, which mark the part that is used.
import { addStyle, make } from "./elements.js"
import { say } from "./words.js"

const STEP = 0.1 // seconds, as of the node's widgets
const LEAST = 0.1 // seconds between the handles
export const MOST = 30 // seconds of a part, as the engine takes
const BAR = 3 // CSS pixels from one bar to the next
const [QUIET, LOUD] = [0.03, 0.98] // peaks of a recording that is too quiet, or cut off

addStyle(`
.higgs-wave-box { position: relative; min-height: 0; touch-action: none; }
.higgs-wave-box canvas { position: absolute; inset: 0; width: 100%; height: 100%; cursor: crosshair; }
.higgs-handle { position: absolute; top: 0; bottom: 0; width: 9px; margin-left: -4px; cursor: ew-resize;
    border-radius: 3px; touch-action: none; }
.higgs-handle::after { content: ""; position: absolute; left: 3px; width: 3px; top: 0; bottom: 0; border-radius: 2px;
    background: #4a9eff; }
.higgs-handle:focus-visible { outline: 2px solid #4a9eff; background: #4a9eff55; }
.higgs-handle[hidden] { display: none; }
`)

/** @param {number} seconds */
const rounded = (seconds) => Math.round(seconds / STEP) * STEP

export class ClipWave {
    /** @type {number[]} peaks from 0 to 1 */
    #peaks = []
    #seconds = 0
    #start = 0
    #stop = 0
    #isLive = false

    /** @param {(start: number, stop: number) => void} onChange */
    constructor(onChange) {
        this.onChange = onChange
        this.element = make("div", "higgs-wave-box")
        this.canvas = make("canvas", "higgs-wave")
        this.handles = [say("Start of the clip"), say("End of the clip")].map((label, side) => {
            const handle = make("div", "higgs-handle")
            handle.title = label
            handle.tabIndex = 0
            handle.setAttribute("role", "slider")
            handle.setAttribute("aria-label", label)
            handle.addEventListener("keydown", (event) => this.#onKey(event, side))
            handle.addEventListener("pointerdown", (event) => this.#drag(event, handle, side))
            return handle
        })
        this.canvas.addEventListener("pointerdown", (event) => this.#select(event))
        this.element.append(this.canvas, ...this.handles)
        new ResizeObserver(() => this.draw()).observe(this.canvas)
        this.show([], 0, 0, 0)
    }

    /**
     * @param {number[]} peaks from 0 to 1
     * @param {number} seconds of the recording; 0 for none
     * @param {number} start
     * @param {number} stop
     */
    show(peaks, seconds, start, stop) {
        this.#isLive = false
        this.#peaks = peaks
        this.#seconds = seconds
        this.#start = Math.min(start, seconds)
        this.#stop = Math.min(stop, seconds)
        const ends = [this.#start, this.#stop]
        for (const [side, handle] of this.handles.entries()) {
            handle.hidden = !seconds
            handle.style.left = `${seconds ? (100 * ends[side]) / seconds : 0}%`
            handle.setAttribute("aria-valuemin", "0")
            handle.setAttribute("aria-valuemax", seconds.toFixed(1))
            handle.setAttribute("aria-valuenow", ends[side].toFixed(1))
            handle.setAttribute("aria-valuetext", say("{seconds} s", { seconds: ends[side].toFixed(1) }))
        }
        this.draw()
    }

    /** Shows what is being recorded. @param {number[]} peaks from 0 to 1 */
    showLive(peaks) {
        for (const handle of this.handles) handle.hidden = true
        this.#isLive = true
        this.#peaks = peaks
        this.draw()
    }

    /**
     * @param {number} side
     * @param {number} at seconds
     */
    #move(side, at) {
        let [start, stop] = [this.#start, this.#stop]
        if (side === 0) {
            start = Math.max(0, Math.min(rounded(at), this.#seconds - LEAST))
            stop = Math.min(Math.max(stop, start + LEAST), start + MOST)
        } else {
            stop = Math.min(this.#seconds, Math.max(at >= this.#seconds ? at : rounded(at), LEAST))
            start = Math.max(Math.min(start, stop - LEAST), rounded(stop - MOST), 0)
        }
        this.show(this.#peaks, this.#seconds, start, stop)
        this.onChange(start, stop)
    }

    /**
     * @param {KeyboardEvent} event
     * @param {number} side
     */
    #onKey(event, side) {
        const step = event.shiftKey ? 1 : STEP
        const now = side ? this.#stop : this.#start
        /** @type {Record<string, number>} */
        const places = { ArrowLeft: now - step, ArrowRight: now + step, Home: 0, End: this.#seconds }
        const at = places[event.key]
        if (at === undefined || event.ctrlKey || event.metaKey || event.altKey) return
        event.preventDefault()
        event.stopPropagation() // else the node moves
        this.#move(side, at)
    }

    /** @param {PointerEvent} event */
    #secondsAt(event) {
        const box = this.canvas.getBoundingClientRect()
        return ((event.clientX - box.left) / box.width) * this.#seconds
    }

    /**
     * Follows the pointer until it lets go.
     * @param {PointerEvent} event
     * @param {HTMLElement} element
     * @param {number} side
     */
    #drag(event, element, side) {
        if (event.button) return
        element.setPointerCapture(event.pointerId)
        const onMove = (/** @type {PointerEvent} */ moved) => this.#move(side, this.#secondsAt(moved))
        element.addEventListener("pointermove", onMove)
        const onUp = () => element.removeEventListener("pointermove", onMove)
        element.addEventListener("lostpointercapture", onUp, { once: true })
    }

    /** Marks a new part, from where the pointer is pressed to where it lets go. @param {PointerEvent} event */
    #select(event) {
        if (!this.#seconds || event.button || this.#isLive) return
        const from = this.#secondsAt(event)
        const onMove = (/** @type {PointerEvent} */ moved) => {
            if (Math.abs(moved.clientX - event.clientX) < 4) return
            this.canvas.removeEventListener("pointermove", onMove)
            const isForward = moved.clientX > event.clientX
            this.#start = rounded(from)
            this.#stop = Math.max(this.#start, from)
            this.#drag(event, this.canvas, isForward ? 1 : 0)
        }
        this.canvas.addEventListener("pointermove", onMove)
        this.canvas.addEventListener("pointerup", () => this.canvas.removeEventListener("pointermove", onMove), {
            once: true,
        })
    }

    draw() {
        const { canvas } = this
        const scale = globalThis.devicePixelRatio || 1
        const [width, height] = [canvas.clientWidth, canvas.clientHeight]
        const pen = canvas.getContext("2d")
        if (!pen || !width) return
        canvas.width = Math.round(width * scale)
        canvas.height = Math.round(height * scale)
        pen.scale(scale, scale)
        const style = getComputedStyle(canvas)
        const [used, rest] = ["--higgs-heard", "--higgs-there"].map((name) => style.getPropertyValue(name))
        const bars = Math.floor(width / BAR)
        const shown = this.#isLive ? bars : this.#peaks.length // a live one scrolls
        const first = this.#isLive ? Math.max(0, this.#peaks.length - bars) : 0
        for (let bar = 0; bar < bars; ++bar) {
            const from = first + Math.floor((bar / bars) * shown)
            const to = first + Math.max(Math.floor(((bar + 1) / bars) * shown), Math.floor((bar / bars) * shown) + 1)
            let peak = 0
            for (let at = from; at < to && at < this.#peaks.length; ++at) peak = Math.max(peak, this.#peaks[at])
            const at = ((bar + 0.5) / bars) * this.#seconds
            pen.fillStyle = at >= this.#start && at <= this.#stop ? used : rest
            if (this.#isLive) pen.fillStyle = peak > LOUD ? "#ff5050" : peak < QUIET ? rest : "#50c878"
            const size = Math.max(1, Math.sqrt(peak) * height)
            pen.fillRect(bar * BAR, (height - size) / 2, BAR - 1, size)
        }
    }
}
