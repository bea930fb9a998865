// Box at a word of a player's text: why it is doubtful, and a button that takes its sentence again.
import { addStyle, make } from "./elements.js"
import { openPopover } from "./popover.js"
import { say } from "./words.js"

addStyle(`
.higgs-word-box { position: fixed; z-index: 10000; max-width: 320px; padding: 6px 8px; border-radius: 6px;
    border: 1px solid var(--border-color, #444); background: var(--comfy-menu-bg, #222);
    color: var(--input-text, #ddd); font: 12px/18px sans-serif; box-shadow: 0 4px 12px rgb(0 0 0 / 40%); }
.higgs-word-box .higgs-sentence { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; font-size: 11px;
    color: var(--descrip-text, #999); }
.higgs-word-box button { margin-top: 4px; border: 1px solid var(--border-color, #444); border-radius: 4px;
    padding: 1px 8px; background: transparent; color: inherit; font: inherit; cursor: pointer; }
.higgs-word-box button:hover { background: var(--border-color, #444); }
.higgs-word-box button:disabled { opacity: 0.5; background: transparent; cursor: default; }
`)

/**
 * Reason why a word is doubtful, empty if it is not.
 * @param {import("./heard_word.js").Word} word
 */
export function reasonOf({ doubt }) {
    if (!doubt) return ""
    if (doubt === "again") return say("This is said again.")
    if (doubt === "missing") return say("This is not heard.")
    if (doubt === "cut") return say("This is cut short.")
    if (doubt === "added") return say("Sounds follow here that are not in the text.")
    return say("This may be wrong.")
}

/**
 * Opens the box below a word.
 * @param {HTMLElement} below
 * @param {import("./heard_word.js").Word} word
 * @param {string} sentence its text
 * @param {{problem: string, onAgain: () => void} | null} retake problem: why there is none; null: the node has no retakes
 * @param {boolean} isByKey the focus moves to the box
 */
export function openWordBox(below, word, sentence, retake, isByKey) {
    const box = make("div", "higgs-word-box")
    box.setAttribute("role", "dialog")
    const reason = reasonOf(word)
    if (reason) {
        const line = make("div", "higgs-reason")
        line.textContent = reason
        box.append(line)
    }
    const said = make("div", "higgs-sentence")
    said.textContent = said.title = sentence
    box.append(said)
    box.setAttribute("aria-label", reason || sentence)
    const button = retake && make("button", "higgs-again")
    if (button) {
        button.textContent = say("Take this sentence again")
        button.title = retake.problem || say("With another seed. All other sentences stay as they are.")
        button.disabled = Boolean(retake.problem)
        box.append(button)
    }
    const close = openPopover(box, below, () => isByKey && below.focus())
    button?.addEventListener("click", () => {
        close()
        retake?.onAgain()
    })
    if (isByKey) button?.focus()
}
