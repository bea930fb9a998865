// View of a player: buttons, waveform, time, volume, and a status line.
import { setVolume, volume } from "./context.js"
import { addStyle, make, update } from "./elements.js"
import { whatItSays } from "./player_words.js"
import { resultAddress } from "./server.js"
import { SpokenText, TEXT_HEIGHT } from "./spoken_text.js"
import { clock, RATE } from "./times.js"
import { drawWaveform } from "./waveform.js"
import { openWordBox } from "./word_box.js"
import { say } from "./words.js"

export const HEIGHT = 80 + TEXT_HEIGHT // CSS pixels
const PAUSE = 100 // minimum ms between redraws, which take time from a model on the same processor

addStyle(`
.higgs-player { --higgs-heard: #4a9eff; --higgs-there: var(--descrip-text, #999); box-sizing: border-box;
    height: ${HEIGHT - 20}px; min-height: ${HEIGHT - 20}px;
    max-height: ${HEIGHT - 20}px; display: grid; grid-template-columns: auto minmax(0, 1fr) auto;
    grid-template-rows: 16px minmax(16px, 1fr) ${TEXT_HEIGHT}px 18px; gap: 2px 6px; padding: 2px 6px; border-radius: 6px; overflow: hidden;
    background: var(--comfy-input-bg, #222); color: var(--input-text, #ddd); font: 11px/16px sans-serif; }
.higgs-player button, .higgs-player a { border: 0; border-radius: 4px; padding: 0 6px; background: transparent;
    color: inherit; font: inherit; text-decoration: none; cursor: pointer; }
.higgs-player button:hover, .higgs-player a:hover { background: var(--border-color, #444); }
.higgs-player .higgs-play { font-size: 16px; width: 28px; grid-row: 1 / 3; }
.higgs-player canvas { width: 100%; height: 100%; min-width: 0; min-height: 0; cursor: pointer; grid-row: 1 / 3; }
.higgs-player .higgs-time { font-variant-numeric: tabular-nums; text-align: right; white-space: nowrap; }
.higgs-player .higgs-text { grid-column: 1 / 4; }
.higgs-player .higgs-says { grid-column: 1 / 4; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
    color: var(--descrip-text, #999); }
.higgs-player .higgs-ends { display: flex; align-items: center; justify-content: flex-end; }
.higgs-player input { width: 52px; height: 12px; accent-color: #4a9eff; }
`)

/**
 * Sentences taken again. problem: why a run has none, empty if it has.
 * @typedef {{problem: (run: import("./server.js").Run) => string,
 *     onAgain: (run: import("./server.js").Run, sentence: number) => void}} Retakes
 */

export class PlayerView {
    /** @type {import("./player.js").Player | undefined} */
    #player
    #isDue = false
    #drawn = -PAUSE // when
    #isMarking = false

    /**
     * @param {() => void} onTakes
     * @param {Retakes | null} retakes null if the node has none
     */
    constructor(onTakes, retakes) {
        this.onTakes = onTakes
        this.retakes = retakes
        this.element = make("div", "higgs-player")
        this.play = make("button", "higgs-play")
        this.wave = make("canvas", "higgs-wave")
        this.time = make("span", "higgs-time")
        this.text = new SpokenText((word, span, isByKey) => {
            this.#player?.playFrom(word.start * RATE)
            if (word.doubt) this.#openBox(word, span, isByKey)
        })
        this.says = make("span", "higgs-says")
        this.stop = make("button", "higgs-stop")
        this.again = make("button", "higgs-open-again")
        this.takes = make("button", "higgs-open-takes")
        this.download = make("a", "higgs-download")
        this.volume = make("input", "higgs-volume")
        const ends = make("span", "higgs-ends")
        this.stop.textContent = "■"
        this.stop.title = say("Cancel the run")
        Object.assign(this.volume, { type: "range", min: "0", max: "1", step: "0.05", title: say("Volume") })
        this.time.title = say("Time played, and the length")
        this.again.textContent = "↻"
        this.again.title = say("Take the sentence of the marked word again")
        this.again.setAttribute("aria-haspopup", "dialog")
        this.takes.textContent = "☰"
        this.takes.title = say("The latest runs of this node: play them and keep one")
        this.takes.setAttribute("aria-haspopup", "dialog")
        this.download.textContent = "⤓"
        this.download.title = say("Download the result")
        ends.append(this.stop, this.again, this.takes, this.download, this.volume)
        this.element.append(this.play, this.wave, this.time, ends, this.text.element, this.says)
        this.#listen()
        new ResizeObserver(() => this.refresh()).observe(this.wave)
    }

    #listen() {
        for (const type of ["pointerdown", "mousedown", "dblclick"]) {
            this.element.addEventListener(type, (event) => event.stopPropagation()) // else the node is dragged
        }
        this.play.addEventListener("click", () => {
            if (this.#player?.isActive) this.#player.pause()
            else this.#player?.play()
        })
        this.stop.addEventListener("click", () => this.#player?.cancel())
        this.again.addEventListener("click", (event) => {
            const { current } = this.text
            if (current) this.#openBox(current.word, current.span, event.detail === 0)
        })
        this.takes.addEventListener("click", () => this.onTakes())
        this.volume.addEventListener("input", () => setVolume(Number(this.volume.value)))
        this.wave.addEventListener("click", (event) => {
            const box = this.wave.getBoundingClientRect()
            const share = (event.clientX - box.left) / box.width
            if (this.#player) this.#player.seek(share * this.#player.sound.length)
        })
    }

    /**
     * @param {import("./heard_word.js").Word} word
     * @param {HTMLElement} span
     * @param {boolean} isByKey
     */
    #openBox(word, span, isByKey) {
        const player = this.#player
        const { retakes } = this
        if (!player) return
        const { run } = player.sound
        const onAgain = () => {
            player.pause() // so that the next run is heard
            retakes?.onAgain(run, word.sentence ?? 0)
        }
        const retake = retakes && word.sentence ? { problem: retakes.problem(run), onAgain } : null
        openWordBox(span, word, this.text.sentenceOf(word), retake, isByKey)
    }

    get player() {
        return this.#player
    }

    /** @param {import("./player.js").Player} player */
    show(player) {
        this.#player?.removeEventListener("change", this.refresh)
        this.#player = player
        this.download.href = resultAddress(player.sound.run.id)
        player.addEventListener("change", this.refresh)
        this.refresh()
    }

    /** Schedules a redraw, and marks words while they are heard. */
    refresh = () => {
        if (!this.#isMarking) this.#mark()
        if (this.#isDue) return
        this.#isDue = true
        const wait = this.#drawn + PAUSE - performance.now()
        if (wait > 0) setTimeout(() => requestAnimationFrame(this.#onPicture), wait)
        else requestAnimationFrame(this.#onPicture)
    }

    /** Marks the word that is heard, before every picture of the page while sound plays. */
    #mark = () => {
        if (!this.#player) return
        const { sound, audible, mode } = this.#player
        this.text.show(sound.words)
        this.text.mark(audible / RATE)
        this.#isMarking = mode === "playing" && sound.words.length > 0 && this.element.isConnected
        if (this.#isMarking) requestAnimationFrame(this.#mark)
    }

    #onPicture = () => {
        this.#isDue = false
        this.#drawn = performance.now()
        if (this.#player && this.element.isConnected) this.#draw(this.#player)
    }

    /** @param {import("./player.js").Player} player */
    #draw(player) {
        const { sound, position } = player
        const isSpeaking = sound.state === "speaking"
        const whole = `${isSpeaking ? "~" : ""}${clock(sound.length)}`
        const said = whatItSays(player)
        drawWaveform(this.wave, sound, position) // reads sizes and colours, so it comes before any write
        update(this.play, {
            textContent: player.isActive ? "❚❚" : "▶",
            title: player.isActive ? say("Pause") : say("Play"),
        })
        update(this.stop.style, { visibility: isSpeaking ? "visible" : "hidden" })
        const isTimed = sound.words.some(({ method, sentence }) => sentence && method !== "estimated")
        update(this.again.style, { display: this.retakes && isTimed ? "" : "none" }) // without, no word is checked
        update(this.download.style, { display: sound.file ? "" : "none" })
        update(this.download, { download: sound.file })
        update(this.time, { textContent: `${clock(position)} / ${whole}` })
        update(this.volume, { value: String(volume) })
        update(this.says, { textContent: said, title: said })
        update(this.text.element.dataset, {
            hint: isSpeaking ? say("Each part of the text appears once it is spoken.") : "",
        })
        Object.assign(this.element.dataset, { mode: player.mode, state: sound.state })
    }
}
