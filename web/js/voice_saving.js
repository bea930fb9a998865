// Box that asks for a voice's name and saves it.
import { app } from "./comfy.js"
import { addStyle, make } from "./elements.js"
import { openPopover } from "./popover.js"
import { saveVoice } from "./server.js"
import { say, translatedLines } from "./words.js"

addStyle(`
.higgs-saving { position: fixed; z-index: 10000; width: 300px; padding: 8px; display: flex; flex-wrap: wrap; gap: 6px;
    border: 1px solid var(--border-color, #444); border-radius: 6px; background: var(--comfy-menu-bg, #222);
    color: var(--input-text, #ddd); font: 12px/18px sans-serif; }
.higgs-saving input { flex: 1; min-width: 0; padding: 2px 6px; border: 1px solid var(--border-color, #444);
    border-radius: 4px; background: var(--comfy-input-bg, #222); color: inherit; font: inherit; }
.higgs-saving button { border: 1px solid var(--border-color, #444); border-radius: 4px; padding: 2px 10px;
    background: transparent; color: inherit; font: inherit; cursor: pointer; }
.higgs-saving .higgs-says { flex: 1 0 100%; color: var(--descrip-text, #999); }
.higgs-saving .higgs-problem { color: var(--error-text, #ff7070); }
`)

/**
 * @param {HTMLElement} below
 * @param {import("./server.js").Part} part
 * @param {string | null} transcript null if another node has it
 * @param {(text: string) => void} onSaved
 */
export function openVoiceSaving(below, part, transcript, onSaved) {
    const box = make("form", "higgs-saving")
    const name = make("input", "higgs-name")
    const button = make("button", "higgs-save")
    const says = make("span", "higgs-says")
    box.setAttribute("role", "dialog")
    box.setAttribute("aria-label", say("Save voice"))
    says.setAttribute("role", "status")
    name.setAttribute("aria-label", say("Name of the voice"))
    name.placeholder = say("Name of the voice")
    button.textContent = say("Save")
    says.textContent = say("Clone a voice only with the speaker's permission.")
    box.append(name, button, says)
    const close = openPopover(box, below, () => below.focus())
    box.addEventListener("keydown", (event) => event.stopPropagation()) // the page has shortcuts for these keys
    box.addEventListener("submit", async (event) => {
        event.preventDefault()
        button.disabled = true
        try {
            const saved = { name: await saveVoice(part, transcript ?? "", name.value) }
            close()
            onSaved(
                transcript === null
                    ? say("Saved as {name} without the linked transcript. Higgs Save Voice keeps both.", saved)
                    : say("Saved as {name} in models/voices.", saved),
            )
            await app.refreshComboInNodes()
        } catch (error) {
            says.textContent = translatedLines(error instanceof Error ? error.message : String(error))
            says.classList.add("higgs-problem")
            button.disabled = false
        }
    })
    name.focus()
}
