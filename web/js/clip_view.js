// View of the clip of Higgs Voice: buttons, waveform, what the clip is good for, and a status line.
import { ClipWave } from "./clip_wave.js"
import { addStyle, make, update } from "./elements.js"
import { say, translated } from "./words.js"

export const HEIGHT = 152 // CSS pixels
const MARKS = { good: "✓", fair: "!", poor: "✕" }

addStyle(`
.higgs-clip { --higgs-heard: #4a9eff; --higgs-there: var(--descrip-text, #999); box-sizing: border-box;
    height: ${HEIGHT - 8}px; min-height: ${HEIGHT - 8}px; max-height: ${HEIGHT - 8}px; display: grid;
    grid-template-rows: 24px minmax(0, 1fr) 20px 18px; gap: 4px; padding: 4px 6px; border-radius: 6px;
    overflow: hidden; background: var(--comfy-input-bg, #222); color: var(--input-text, #ddd);
    font: 11px/16px sans-serif; }
.higgs-clip.higgs-over { outline: 2px dashed #4a9eff; outline-offset: -2px; }
.higgs-clip > div { display: flex; gap: 3px; min-width: 0; }
.higgs-clip button { flex: 0 1 auto; min-width: 26px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
    border: 1px solid var(--border-color, #444); border-radius: 4px; padding: 0 8px; background: transparent;
    color: inherit; font: inherit; cursor: pointer; }
.higgs-clip button:hover:enabled { background: var(--border-color, #444); }
.higgs-clip button:focus-visible { outline: 2px solid #4a9eff; outline-offset: -1px; }
.higgs-clip button:disabled { opacity: 0.45; cursor: default; }
.higgs-clip .higgs-record::before { content: "● "; color: #ff5050; }
.higgs-clip .higgs-record[aria-pressed=true]::before { content: "■ "; }
.higgs-clip .higgs-level { flex: 1; align-self: center; height: 8px; border-radius: 4px; overflow: hidden;
    background: var(--border-color, #444); }
.higgs-clip .higgs-level > span { display: block; width: 0; height: 100%; background: #50c878; }
.higgs-clip .higgs-level.higgs-loud > span { background: #ff5050; }
.higgs-clip [hidden] { display: none; }
.higgs-clip .higgs-seconds { margin-left: auto; align-self: center; white-space: nowrap;
    font-variant-numeric: tabular-nums; }
.higgs-clip .higgs-check { flex: 0 1 auto; min-width: 0; overflow: hidden; text-overflow: ellipsis;
    white-space: nowrap; border-radius: 4px; padding: 2px 4px; background: #50c87833; font-size: 10px; }
.higgs-clip .higgs-check[data-verdict=fair] { background: #e0a03044; }
.higgs-clip .higgs-check[data-verdict=poor] { background: #ff505044; }
.higgs-clip .higgs-says { overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
    color: var(--descrip-text, #999); }
.higgs-clip .higgs-says.higgs-problem { color: var(--error-text, #ff7070); }
`)

/** Name of a check in the page's language. @param {string} name */
function nameOf(name) {
    if (name === "length") return say("length")
    if (name === "level") return say("level")
    if (name === "noise") return say("noise")
    if (name === "echo") return say("echo")
    return say("speech")
}

/**
 * @typedef {{onRecord: () => void, onPlay: () => void, onTranscribe: () => void, onSave: () => void,
 *     onPart: (start: number, stop: number) => void, onFile: (file: File) => void}} Listener
 */

export class ClipView {
    /** @param {Listener} listener */
    constructor(listener) {
        this.element = make("div", "higgs-clip")
        this.element.setAttribute("role", "group")
        this.element.setAttribute("aria-label", say("Clip of the voice"))
        const buttons = make("div", "higgs-buttons")
        this.record = make("button", "higgs-record")
        this.play = make("button", "higgs-play")
        this.transcribe = make("button", "higgs-transcribe")
        this.save = make("button", "higgs-save")
        this.level = make("span", "higgs-level")
        this.level.setAttribute("role", "meter")
        this.level.setAttribute("aria-label", say("Level of the microphone"))
        this.level.append(make("span", ""))
        this.seconds = make("span", "higgs-seconds")
        this.wave = new ClipWave(listener.onPart)
        this.checks = make("div", "higgs-checks")
        this.checks.setAttribute("role", "list")
        this.says = make("span", "higgs-says")
        this.says.setAttribute("role", "status")
        this.record.title = say("Record the microphone into ComfyUI's input folder")
        this.play.title = say("Play the clip")
        this.transcribe.title = say("Have Whisper write down what is said in the clip. Check it for misheard words.")
        this.save.title = say("Save the clip and its transcript as a voice in models/voices")
        this.save.setAttribute("aria-haspopup", "dialog")
        for (const [button, onClick] of /** @type {[HTMLButtonElement, () => void][]} */ ([
            [this.record, listener.onRecord],
            [this.play, listener.onPlay],
            [this.transcribe, listener.onTranscribe],
            [this.save, listener.onSave],
        ])) {
            button.type = "button"
            button.addEventListener("click", onClick)
        }
        buttons.append(this.record, this.play, this.transcribe, this.save, this.level, this.seconds)
        this.element.append(buttons, this.wave.element, this.checks, this.says)
        this.#listen(listener.onFile)
    }

    /** @param {(file: File) => void} onFile */
    #listen(onFile) {
        for (const type of ["pointerdown", "mousedown", "dblclick"]) {
            this.element.addEventListener(type, (event) => event.stopPropagation()) // else the node is dragged
        }
        this.element.addEventListener("keydown", (event) => {
            if (event.key === "Enter" || event.key === " ") event.stopPropagation() // they press the button alone
        })
        this.element.addEventListener("dragover", (event) => {
            if (!event.dataTransfer?.types.includes("Files")) return
            event.preventDefault()
            event.stopPropagation()
            this.element.classList.add("higgs-over")
        })
        this.element.addEventListener("dragleave", () => this.element.classList.remove("higgs-over"))
        this.element.addEventListener("drop", (event) => {
            this.element.classList.remove("higgs-over")
            const file = event.dataTransfer?.files[0]
            if (!file) return
            event.preventDefault()
            event.stopPropagation() // else the page opens it as a workflow
            onFile(file)
        })
    }

    /**
     * @param {{isRecording: boolean, isPlaying: boolean, isTranscribing: boolean, hasPart: boolean,
     *     isFixed: boolean, seconds: number}} state isFixed: the transcript comes from another node
     */
    showState({ isRecording, isPlaying, isTranscribing, hasPart, isFixed, seconds }) {
        this.record.setAttribute("aria-pressed", String(isRecording))
        update(this.record, { textContent: isRecording ? say("Stop") : say("Record") })
        update(this.play, { textContent: isPlaying ? "■" : "▶", disabled: !hasPart || isRecording })
        update(this.transcribe, {
            textContent: isTranscribing ? say("Stop") : say("Transcribe"),
            disabled: !isTranscribing && (!hasPart || isRecording || isFixed),
        })
        update(this.save, { textContent: say("Save voice"), disabled: !hasPart || isRecording })
        update(this.level, { hidden: !isRecording })
        update(this.save, { hidden: isRecording })
        update(this.transcribe, { hidden: isRecording })
        update(this.seconds, { textContent: seconds ? say("{seconds} s", { seconds: seconds.toFixed(1) }) : "" })
    }

    /** @param {number} peak 0 to 1 */
    showLevel(peak) {
        const decibels = Math.round(20 * Math.log10(Math.max(peak, 1e-3)))
        const bar = /** @type {HTMLElement} */ (this.level.firstChild)
        bar.style.width = `${(100 * (decibels + 60)) / 60}%`
        this.level.classList.toggle("higgs-loud", peak > 0.98)
        this.level.setAttribute("aria-valuemin", "-60")
        this.level.setAttribute("aria-valuemax", "0")
        this.level.setAttribute("aria-valuenow", String(decibels))
    }

    /** Shows no checks. */
    clear() {
        this.checks.replaceChildren()
    }

    /**
     * Shows what a clip is good for, and says the worst of it.
     * @param {import("./server.js").ClipCheck[]} checks
     * @param {string} lacking what its transcript lacks, empty if nothing
     */
    showChecks(checks, lacking) {
        const chips = checks.map(({ name, shown, verdict, advice }) => {
            const chip = make("span", "higgs-check")
            chip.textContent = [MARKS[verdict], nameOf(name), shown].join(" ").trim()
            chip.title = translated(advice) || say("good")
            chip.dataset.verdict = verdict
            chip.setAttribute("role", "listitem")
            return chip
        })
        this.checks.replaceChildren(...chips)
        const worst = ["poor", "fair"].flatMap((one) => checks.filter(({ verdict }) => verdict === one))[0]
        if (worst?.verdict === "poor") this.tell(translated(worst.advice), true)
        else this.tell(translated(lacking || worst?.advice || "") || say("This clip is good."))
    }

    /**
     * @param {string} text
     * @param {boolean} [isProblem]
     */
    tell(text, isProblem = false) {
        update(this.says, { textContent: text, title: text })
        this.says.classList.toggle("higgs-problem", isProblem)
    }
}
