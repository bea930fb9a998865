// List of voices over the page: name, length, transcript and a play button. Voices that do not fit are grey.
import { Clip } from "./clip.js"
import { addStyle, make } from "./elements.js"
import { openPopover } from "./popover.js"
import { voiceAddress } from "./server.js"
import { inWords } from "./times.js"
import { say, translated } from "./words.js"

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

/**
 * Returns a button that plays and stops a voice, and a function that silences it.
 * @param {() => string} name
 */
export function hearButton(name) {
    const button = make("button", "higgs-hear")
    /** @type {Clip | undefined} */
    let clip
    const silence = () => clip?.stop()
    button.textContent = "▶"
    button.title = say("Play the voice")
    button.addEventListener("click", (event) => {
        event.stopPropagation()
        if (clip?.isPlaying) return silence()
        if (!name()) return
        button.title = say("Play the voice")
        const made = (clip = new Clip(voiceAddress(name())))
        made.addEventListener("change", () => (button.textContent = made.isPlaying ? "■" : "▶"))
        made.addEventListener("error", () => {
            button.title = say("This voice cannot be played: its model is missing or the file is damaged.")
        })
        made.play()
    })
    return { button, silence }
}

/**
 * Opens the list below an element.
 * @param {HTMLElement} below
 * @param {import("./server.js").Voice[]} voices
 * @param {(name: string) => void} onChoice
 */
export function openVoiceList(below, voices, onChoice) {
    const list = make("div", "higgs-voices")
    const hears = voices.map(({ name }) => hearButton(() => name))
    for (const [number, voice] of voices.entries()) {
        const row = make("div", voice.problem ? "higgs-unfit" : "")
        const name = make("span", "higgs-name")
        const said = make("span", "higgs-said")
        name.textContent = `${voice.name} · ${inWords(voice.seconds, 1)}`
        const problem = translated(voice.problem)
        said.textContent = problem || voice.transcript || say("no transcript")
        row.title = problem || voice.transcript
        row.append(hears[number].button, name, said)
        if (!voice.problem) {
            row.addEventListener("click", () => {
                onChoice(voice.name)
                close()
            })
        }
        list.append(row)
    }
    const close = openPopover(list, below, () => hears.forEach(({ silence }) => silence()))
}
