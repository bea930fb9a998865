// The voices as a list over the page: name, length, what is said, a button to hear each; those that do not fit are grey.
import { addStyle, make } from "./elements.js"
import { openPopover } from "./popover.js"
import { voiceAddress } from "./server.js"

addStyle(`
.higgs-voices { position: fixed; z-index: 10000; width: 420px; max-height: 360px; overflow: auto; padding: 4px;
    border: 1px solid var(--border-color, #444); border-radius: 6px; background: var(--comfy-menu-bg, #222);
    color: var(--input-text, #ddd); font: 12px/18px sans-serif; }
.higgs-voices > div { display: flex; gap: 6px; padding: 2px 4px; border-radius: 4px; cursor: pointer; }
.higgs-voices > div:hover { background: var(--border-color, #444); }
.higgs-voices > div.higgs-unfit { opacity: 0.45; cursor: default; }
.higgs-voices .higgs-said { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
    color: var(--descrip-text, #999); }
.higgs-hear { flex: none; width: 24px; border: 0; border-radius: 4px; background: transparent; color: inherit;
    font: inherit; cursor: pointer; }
`)

/** @type {HTMLAudioElement | undefined} */
let audio
/** @type {HTMLButtonElement | undefined} that plays */
let pressed

/**
 * A button that plays a voice, and stops it again.
 * @param {() => string} name
 */
export function hearButton(name) {
    const button = make("button", "higgs-hear")
    button.textContent = "▶"
    button.title = "Hear the voice"
    button.addEventListener("click", async (event) => {
        event.stopPropagation()
        const isMine = pressed === button
        silence()
        if (isMine || !name()) return
        pressed = button
        button.textContent = "■"
        audio = new Audio(voiceAddress(name()))
        audio.addEventListener("ended", silence)
        audio.addEventListener("error", () => {
            silence()
            button.title = "It cannot be heard: its model is not here, or the file is damaged."
        })
        await audio.play().catch(() => {}) // stopped before it began
    })
    return button
}

function silence() {
    audio?.pause()
    if (pressed) pressed.textContent = "▶"
    audio = pressed = undefined
}

/**
 * Opens the list below an element.
 * @param {HTMLElement} below
 * @param {import("./server.js").Voice[]} voices
 * @param {(name: string) => void} onChoice
 */
export function openVoiceList(below, voices, onChoice) {
    const list = make("div", "higgs-voices")
    for (const voice of voices) {
        const row = make("div", voice.problem ? "higgs-unfit" : "")
        const name = make("span", "higgs-name")
        const said = make("span", "higgs-said")
        name.textContent = `${voice.name} · ${voice.seconds.toFixed(1)} s`
        said.textContent = voice.problem || voice.transcript || "no transcript"
        row.title = voice.problem || voice.transcript
        row.append(
            hearButton(() => voice.name),
            name,
            said,
        )
        if (!voice.problem) {
            row.addEventListener("click", () => {
                onChoice(voice.name)
                close()
            })
        }
        list.append(row)
    }
    const close = openPopover(list, below, silence)
}
