// Line at the foot of the focused text area, or above a small one: tags, problems, estimated length.
import { addStyle, make } from "./elements.js"
import { about } from "./tokens.js"
import { say } from "./words.js"

export const HEIGHT = 24 // CSS pixels
const LEAST = 72 // least height of a text area with room for it inside

addStyle(`
.higgs-text-bar { position: fixed; z-index: 901; box-sizing: border-box; min-height: ${HEIGHT}px; display: flex;
    align-items: end; gap: 8px; padding: 3px 6px; overflow: hidden; transform-origin: 0 100%; border-radius: 0 0 6px 6px;
    border-top: 1px solid var(--border-color, #444); background: var(--comfy-input-bg, #222);
    color: var(--descrip-text, #999); font: 11px/16px sans-serif; }
.higgs-text-bar.higgs-above { border: 1px solid var(--border-color, #444); border-radius: 6px 6px 0 0; }
.higgs-text-bar button { flex: none; border: 0; border-radius: 4px; padding: 0 6px; background: transparent;
    color: var(--input-text, #ddd); font: inherit; cursor: pointer; }
.higgs-text-bar button:hover, .higgs-text-bar button[aria-expanded=true] { background: var(--border-color, #444); }
.higgs-text-bar .higgs-hint { flex: 1; min-width: 0; overflow: hidden; display: -webkit-box; -webkit-box-orient: vertical;
    -webkit-line-clamp: 3; overflow-wrap: anywhere; }
.higgs-text-bar .higgs-wrong { color: var(--error-text, #ff7070); cursor: pointer; }
.higgs-text-bar [hidden] { display: none; }
.higgs-text-bar .higgs-length { flex: none; font-variant-numeric: tabular-nums; }
`)

export class TextBar {
    /**
     * @param {HTMLTextAreaElement} area
     * @param {{onMenu: () => void, onManner: (() => void) | null, onHint: () => void, onAdd: () => void}} listener
     *     onManner: null if the text has no turns
     */
    constructor(area, { onMenu, onManner, onHint, onAdd }) {
        this.area = area
        this.element = make("div", "higgs-text-bar")
        this.tags = make("button", "higgs-tags")
        this.manner = make("button", "higgs-manner")
        this.hint = make("span", "higgs-hint")
        this.add = make("button", "higgs-add")
        this.length = make("span", "higgs-length")
        this.tags.textContent = `${say("Tags")} ▾`
        this.tags.title = say("Tags of this model (Ctrl+Space). Or type <| or [ in the text.")
        this.manner.textContent = `${say("Manner")} ▾`
        this.manner.title = say("How this turn is spoken (Ctrl+Shift+Space). Choose it again to remove it.")
        this.manner.hidden = !onManner
        for (const button of [this.tags, this.manner]) {
            button.tabIndex = -1
            button.setAttribute("aria-haspopup", "listbox")
        }
        this.hint.setAttribute("role", "status")
        this.add.textContent = say("Change")
        this.add.title = say("Add it to the node's pronunciations, to change how it is said")
        this.add.tabIndex = -1
        this.add.hidden = true
        this.length.title = say("Estimated length of the speech")
        this.element.append(this.tags, this.manner, this.hint, this.add, this.length)
        // The text area keeps the focus.
        for (const type of ["pointerdown", "mousedown"]) {
            this.element.addEventListener(type, (event) => {
                event.preventDefault()
                event.stopPropagation()
            })
        }
        this.tags.addEventListener("click", onMenu)
        if (onManner) this.manner.addEventListener("click", onManner)
        this.hint.addEventListener("click", onHint)
        this.add.addEventListener("click", onAdd)
        this.isInside = area.offsetHeight >= LEAST
        this.padding = area.style.paddingBottom
        if (this.isInside) area.style.paddingBottom = `${HEIGHT + 2}px`
        this.element.classList.toggle("higgs-above", !this.isInside) // there are widgets below
        const colour = getComputedStyle(area).backgroundColor
        if (!/transparent|, 0\)/.test(colour)) this.element.style.backgroundColor = colour
        document.body.append(this.element)
    }

    /** @param {number} scale scale of the text area on the page */
    follow(scale) {
        const box = this.area.getBoundingClientRect()
        Object.assign(this.element.style, {
            left: `${box.left}px`,
            bottom: `${innerHeight - (this.isInside ? box.bottom : box.top)}px`,
            width: `${this.area.offsetWidth}px`,
            transform: `scale(${scale})`,
        })
    }

    /**
     * @param {number | null} seconds
     * @param {string} hint
     * @param {boolean} isWrong
     * @param {boolean} isAddable
     */
    show(seconds, hint, isWrong, isAddable) {
        this.length.textContent = about(seconds)
        this.hint.textContent = this.hint.title = hint
        this.hint.classList.toggle("higgs-wrong", isWrong)
        this.add.hidden = !isAddable
    }

    remove() {
        this.area.style.paddingBottom = this.padding
        this.element.remove()
    }
}
