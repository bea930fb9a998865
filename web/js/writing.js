// Helps while a text of our nodes is written: completion, the menu of tags, underlines, and the estimated length.
import { ChoiceList } from "./choices.js"
import { app } from "./comfy.js"
import { modelOf } from "./graph.js"
import { mannerChoices, placeForManner } from "./manner.js"
import { Mirror } from "./mirror.js"
import { lookAt, tagsOf } from "./server.js"
import { TextBar } from "./text_bar.js"
import { kindOf, nodeOf, pronunciationsOf, remember, settingsOf, write } from "./text_fields.js"
import { choicesFor, isListed, moved, partAt, placeFor, tagChoices, tokenAt, withEntry } from "./tokens.js"
import { say, translated } from "./words.js"

const REST = 250 // ms without a key before the server checks the text
const LOOK = 100 // ms between looks at a text area that lies still

/** State and display of the focused text. */
class Writing {
    /** @type {import("./tokens.js").Choice[]} */
    #tags = []
    /** @type {import("./server.js").Look} */
    #look = { seconds: null, hints: [], notes: [], names: [], said: [] }
    /** @type {import("./tokens.js").Token | null} */
    #token = null
    #text = ""
    #looked = "" // text of the server's last answer
    #round = 0
    #timer = 0
    #isOver = false

    /**
     * @param {HTMLTextAreaElement} area
     * @param {import("../../tests/web/comfy").Node} node
     */
    constructor(area, node) {
        this.area = area
        this.node = node
        this.model = modelOf(node)
        this.list = new ChoiceList((choice) => this.#take(choice))
        this.bar = new TextBar(area, {
            onMenu: () => this.toggleMenu(),
            onManner: this.#hasNames ? () => this.toggleMenu(true) : null,
            onHint: () => this.#goToHint(),
            onAdd: () => this.#addEntry(),
        })
        this.mirror = new Mirror(area)
        this.#text = area.value
        area.setAttribute("aria-autocomplete", "list")
        area.setAttribute("aria-controls", this.list.list.id)
        tagsOf(this.model).then((groups) => {
            this.#tags = tagChoices(groups)
            const ofTurn = this.bar.manner.getAttribute("aria-expanded") === "true"
            if (this.list.isMenu) this.toggleMenu(ofTurn, true)
            else if (this.#token) this.#complete() // the user types faster than the server answers
        }, console.warn)
        this.#ask()
        this.#follow()
    }

    get #hasNames() {
        return ["script", "srt"].includes(kindOf(this.node))
    }

    onInput() {
        this.#look = this.#moved(this.#look, this.#text)
        this.#text = this.area.value
        this.refresh()
        this.#complete()
        clearTimeout(this.#timer)
        this.#timer = window.setTimeout(() => this.#ask(), REST)
    }

    /** Updates the display after the caret has moved or an answer has arrived. */
    refresh() {
        if (this.#isOver) return
        const { hints, notes, seconds } = this.#look
        this.mirror.draw([...hints, ...this.#said].sort((one, other) => one.start - other.start))
        const own = partAt(hints, this.area.selectionEnd) ? undefined : this.#saidAtCaret()
        if (own) {
            const written = this.area.value.slice(own.start, own.stop).trim()
            const told = say("“{written}” is said “{said}”.", { written, said: own.said })
            return this.bar.show(seconds, told, false, own.entry !== "" && pronunciationsOf(this.node) !== undefined)
        }
        const hint = this.#hintAtCaret()
        const values = { number: hint ? hints.indexOf(hint) + 1 : 0, count: hints.length }
        const place = hints.length > 1 && hint ? `${say("{number} of {count}:", values)} ` : ""
        const told = hint ? place + translated(hint.says) : notes.map(translated).join(" ")
        this.bar.show(seconds, told, Boolean(hint ?? notes.length), false)
    }

    onCaret() {
        this.refresh()
        const token = tokenAt(this.area.value, this.area.selectionEnd, this.#hasNames)
        if (this.list.isOpen && !this.list.isMenu && token?.start !== this.#token?.start) this.closeList()
    }

    /** @param {KeyboardEvent} event @returns {boolean} true if the list used it */
    onKey(event) {
        if (event.isComposing) return false
        if (event.key === " " && event.ctrlKey && !event.altKey && (!event.shiftKey || this.#hasNames)) {
            this.toggleMenu(event.shiftKey)
            return true
        }
        if (!this.list.isOpen || event.ctrlKey || event.altKey || event.metaKey) return false
        const { key } = event
        if (key === "ArrowDown" || key === "ArrowUp") this.#move(key === "ArrowDown" ? 1 : -1)
        else if (this.list.isMenu && (key === "ArrowRight" || key === "ArrowLeft")) {
            this.#move(key === "ArrowRight" ? 1 : -1)
        } else if (key === "Escape") {
            this.#token = null
            this.closeList()
        } else if (key === "Tab" || (key === "Enter" && this.list.active)) return this.list.take()
        else return false
        return true
    }

    /** @param {boolean} ofTurn true for the menu of manners; isFilled: fill it anew */
    toggleMenu(ofTurn = false, isFilled = false) {
        if (this.list.isMenu && !isFilled) return this.closeList()
        this.#token = null
        const choices = ofTurn ? mannerChoices(this.#tags, kindOf(this.node) === "script") : this.#tags
        this.#open(choices, this.area.getBoundingClientRect(), { isMenu: true })
        this.bar[ofTurn ? "manner" : "tags"].setAttribute("aria-expanded", "true")
    }

    closeList() {
        this.list.close()
        this.#tellClosed()
        this.area.removeAttribute("aria-activedescendant")
    }

    end() {
        this.#isOver = true
        clearTimeout(this.#timer)
        this.closeList()
        this.bar.remove()
        this.mirror.remove()
        for (const name of ["aria-autocomplete", "aria-controls"]) this.area.removeAttribute(name)
    }

    #hintAtCaret() {
        const { hints } = this.#look
        return partAt(hints, this.area.selectionEnd) ?? hints[0]
    }

    /** Parts that are said otherwise, without those that the node's pronunciations settle. */
    get #said() {
        const list = String(pronunciationsOf(this.node)?.value ?? "")
        return this.#look.said.filter(({ start, stop }) => !isListed(list, this.area.value.slice(start, stop).trim()))
    }

    /** What is said at the caret. If there is nothing else to tell, the first part that is said otherwise. */
    #saidAtCaret() {
        const [{ hints, notes }, said] = [this.#look, this.#said]
        return partAt(said, this.area.selectionEnd) ?? (hints.length || notes.length ? undefined : said[0])
    }

    #addEntry() {
        const [said, widget] = [this.#saidAtCaret(), pronunciationsOf(this.node)]
        if (!said || !widget) return
        widget.value = withEntry(String(widget.value ?? ""), said.entry)
        widget.callback?.(widget.value)
        this.node.setDirtyCanvas(true, true)
        this.refresh()
    }

    /**
     * @param {import("./server.js").Look} look
     * @param {string} before text that it is about
     */
    #moved(look, before) {
        const { value } = this.area
        return { ...look, hints: moved(look.hints, before, value), said: moved(look.said, before, value) }
    }

    #goToHint() {
        /** @type {{start: number, stop: number}[]} */
        const hints = this.#look.hints.length ? this.#look.hints : this.#said
        const hint = partAt(hints, this.area.selectionEnd) ?? hints[0]
        if (!hint) return
        const isThere = this.area.selectionStart === hint.start && this.area.selectionEnd === hint.stop
        const { start, stop } = isThere ? hints[(hints.indexOf(hint) + 1) % hints.length] : hint
        this.area.setSelectionRange(start, stop)
        this.refresh()
    }

    async #ask() {
        clearTimeout(this.#timer)
        const round = ++this.#round
        const text = this.area.value
        const look = await lookAt(kindOf(this.node), text, this.model, settingsOf(this.node))
        if (round !== this.#round || this.#isOver) return
        this.#look = this.#moved(look, text)
        this.#looked = text
        this.refresh()
        if (this.#token && !this.list.isOpen) this.#complete() // names
    }

    #complete() {
        const { value, selectionEnd } = this.area
        this.#token = tokenAt(value, selectionEnd, this.#hasNames)
        const choices = this.#token ? choicesFor(this.#token, value, this.#tags, this.#look.names) : []
        if (!this.#token || !choices.length) return this.closeList()
        this.#place()
        this.#open(choices, this.mirror.caretBox(), { isSure: this.#token.isSure })
    }

    /** @param {Parameters<ChoiceList["open"]>} what */
    #open(...what) {
        this.list.open(...what)
        this.#tellClosed()
        this.#tellActive()
    }

    #tellClosed() {
        for (const button of [this.bar.tags, this.bar.manner]) button.setAttribute("aria-expanded", "false")
    }

    /** @param {number} by */
    #move(by) {
        this.list.move(by)
        this.#tellActive()
    }

    #tellActive() {
        if (this.list.active) this.area.setAttribute("aria-activedescendant", this.list.active.id)
        else this.area.removeAttribute("aria-activedescendant")
    }

    /** @param {import("./tokens.js").Choice} choice */
    async #take(choice) {
        const { area } = this
        this.closeList()
        // It stands behind a speaker's name, which the server may not have told yet.
        if (choice.isManner && this.#looked !== area.value) await this.#ask().catch(console.warn)
        if (this.#isOver) return
        const place = choice.isManner
            ? placeForManner(choice, area.value, area.selectionEnd, this.#look.names)
            : placeFor(choice, area.value, area.selectionEnd, this.#token)
        write(area, place)
        this.#token = null // the inserted text may look like the start of another token
        this.closeList()
    }

    /** Follows the text area while the canvas moves. */
    #follow() {
        if (this.#isOver) return
        if (!this.area.isConnected) return end()
        if (this.#place()) requestAnimationFrame(() => this.#follow())
        else setTimeout(() => this.#follow(), LOOK)
    }

    /** Lays the display over the text area. False if that has not moved. */
    #place() {
        const scale = this.mirror.follow()
        if (scale !== null) this.bar.follow(scale)
        return scale !== null
    }
}

/** @type {Writing | null} */
let writing = null

function end() {
    writing?.end()
    writing = null
}

/** @param {FocusEvent} event */
function onFocus({ target }) {
    if (!(target instanceof HTMLTextAreaElement) || target === writing?.area) return
    end()
    const node = target.readOnly || target.disabled ? undefined : nodeOf(target)
    if (!node) return
    writing = new Writing(target, node)
    writing.refresh()
}

/** @param {Event} event */
function isOurs({ target }) {
    return writing !== null && target === writing.area
}

app.registerExtension({
    name: "HiggsTTS.Writing",
    nodeCreated: remember,
    setup() {
        document.addEventListener("focusin", onFocus)
        document.addEventListener("focusout", (event) => isOurs(event) && end())
        document.addEventListener("input", (event) => isOurs(event) && writing?.onInput())
        document.addEventListener("selectionchange", () => {
            if (document.activeElement === writing?.area) writing?.onCaret()
        })
        const onKey = (/** @type {KeyboardEvent} */ event) => {
            if (!isOurs(event) || !writing?.onKey(event)) return
            event.preventDefault()
            event.stopImmediatePropagation()
        }
        window.addEventListener("keydown", onKey, true) // before ComfyUI's own keys
    },
})
