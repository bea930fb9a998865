// List over the page for choosing a piece of text, while the caret stays in place.
import { addStyle, make } from "./elements.js"
import { say, translated } from "./words.js"

addStyle(`
.higgs-choices { position: fixed; z-index: 10000; display: flex; flex-direction: column; min-width: 220px;
    max-width: 420px; border: 1px solid var(--border-color, #444); border-radius: 6px; overflow: hidden;
    background: var(--comfy-menu-bg, #222); color: var(--input-text, #ddd); font: 12px/18px sans-serif;
    box-shadow: 0 4px 12px rgb(0 0 0 / 40%); }
.higgs-choices .higgs-list { overflow: auto; max-height: 220px; padding: 4px; }
.higgs-choices [role=option] { padding: 2px 8px; border-radius: 4px; cursor: pointer; white-space: nowrap; }
.higgs-choices [role=option]:hover { background: color-mix(in srgb, var(--border-color, #444) 60%, transparent); }
.higgs-choices [aria-selected=true] { background: var(--border-color, #444); }
.higgs-choices [aria-disabled=true] { opacity: 0.45; cursor: default; }
.higgs-choices .higgs-note { flex: none; padding: 3px 12px; border-top: 1px solid var(--border-color, #444);
    color: var(--descrip-text, #999); font-size: 11px; min-height: 16px; line-height: 16px; }
.higgs-choices.higgs-menu { width: 420px; }
.higgs-choices.higgs-menu .higgs-list { max-height: min(420px, 60vh); padding: 4px 8px 8px; }
.higgs-menu [role=group] { display: flex; flex-wrap: wrap; gap: 4px; }
.higgs-menu .higgs-heading { width: 100%; margin-top: 6px; color: var(--descrip-text, #999); font-size: 11px; }
.higgs-menu [role=option] { border: 1px solid var(--border-color, #444); padding: 0 7px; }
`)

export class ChoiceList {
    #at = -1
    /** @type {import("./tokens.js").Choice[]} */
    #choices = []
    /** @type {HTMLElement[]} */
    #options = []

    /** @param {(choice: import("./tokens.js").Choice) => void} onChoice */
    constructor(onChoice) {
        this.onChoice = onChoice
        this.element = make("div", "higgs-choices")
        this.list = make("div", "higgs-list")
        this.list.id = "higgs-choices"
        this.list.setAttribute("role", "listbox")
        this.note = make("div", "higgs-note")
        this.element.append(this.list, this.note)
        // The text area keeps the focus.
        this.element.addEventListener("pointerdown", (event) => event.preventDefault())
        this.element.addEventListener("mousedown", (event) => event.preventDefault())
        for (const type of ["wheel", "click"]) this.element.addEventListener(type, (event) => event.stopPropagation())
    }

    get isOpen() {
        return this.element.isConnected
    }

    get isMenu() {
        return this.isOpen && this.element.classList.contains("higgs-menu")
    }

    /** Element of the option that Enter inserts, for assistive technology. */
    get active() {
        return this.#options[this.#at]
    }

    /**
     * @param {import("./tokens.js").Choice[]} choices
     * @param {DOMRect} place a menu opens beside it, a list below or above
     * @param {{isMenu?: boolean, isSure?: boolean}} how isMenu: grouped; isSure: Enter inserts the first
     */
    open(choices, place, { isMenu = false, isSure = true } = {}) {
        this.#choices = choices
        this.#options = choices.map((choice, number) => this.#option(choice, number, isMenu))
        this.element.classList.toggle("higgs-menu", isMenu)
        this.list.setAttribute("aria-label", isMenu ? say("Tags") : say("Completions"))
        this.list.replaceChildren(...(isMenu ? this.#groups() : this.#options))
        document.body.append(this.element)
        const { width, height } = this.element.getBoundingClientRect()
        let [left, top] = [place.left, place.bottom + 4]
        if (isMenu) {
            const isRight = place.right + width + 16 < innerWidth || place.left < width + 16
            left = isRight ? place.right + 8 : place.left - width - 8
            top = place.top
        } else if (top + height > innerHeight && place.top > height + 12) top = place.top - height - 4
        const room = isMenu ? 60 : 0 // for a longer note
        this.element.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`
        this.element.style.top = `${Math.max(8, Math.min(top, innerHeight - height - 8 - room))}px`
        this.#go(isSure ? choices.findIndex(({ isOff }) => !isOff) : -1)
        if (this.#at < 0) this.note.textContent = choices[0]?.note ?? ""
    }

    /** @param {number} by options forward or back, including those without effect, so that their reason can be read */
    move(by) {
        const count = this.#choices.length
        this.#go(this.#at < 0 ? (by > 0 ? 0 : count - 1) : (this.#at + by + count) % count)
    }

    /** Inserts the active option, or the first. Returns false if none has an effect. */
    take() {
        const choice = this.#choices[Math.max(0, this.#at)]
        if (!choice || choice.isOff) return false
        this.onChoice(choice)
        return true
    }

    close() {
        this.element.remove()
        this.#at = -1
    }

    /** @param {number} at */
    #go(at) {
        this.active?.setAttribute("aria-selected", "false")
        this.#at = at
        this.active?.setAttribute("aria-selected", "true")
        this.active?.scrollIntoView({ block: "nearest" })
        this.note.textContent = this.#choices[at]?.note ?? ""
    }

    /**
     * @param {import("./tokens.js").Choice} choice
     * @param {number} number
     * @param {boolean} isMenu
     */
    #option(choice, number, isMenu) {
        const option = make("div", "higgs-choice")
        option.id = `higgs-choice-${number}`
        option.setAttribute("role", "option")
        option.setAttribute("aria-selected", "false")
        if (choice.isOff) option.setAttribute("aria-disabled", "true")
        option.textContent = isMenu ? choice.label.replace(/^[a-z]+:/, "").replaceAll("_", " ") : choice.label
        option.title = choice.isOff ? choice.note : choice.value
        option.addEventListener("pointermove", ({ movementX, movementY }) => {
            if (movementX || movementY) this.#go(number) // not if the list opens under a resting pointer
        })
        option.addEventListener("click", () => {
            this.#go(number)
            this.take()
        })
        return option
    }

    #groups() {
        const names = [...new Set(this.#choices.map(({ group }) => group))]
        return names.map((name) => {
            const group = make("div", "higgs-group")
            const heading = make("div", "higgs-heading")
            heading.textContent = translated(name)
            heading.id = `higgs-group-${name}`
            group.setAttribute("role", "group")
            group.setAttribute("aria-labelledby", heading.id)
            group.append(heading, ...this.#options.filter((_, number) => this.#choices[number].group === name))
            return group
        })
    }
}
