// Text of a sound by words: marks the word that is heard, and underlines doubtful ones. A click or Enter plays from a
// word.
import { addStyle, make } from "./elements.js"
import { heardWord } from "./heard_word.js"
import { reasonOf } from "./word_box.js"
import { say } from "./words.js"

/** @typedef {import("./heard_word.js").Word} Word */

export const TEXT_HEIGHT = 48 // CSS pixels: three lines
const LINE = 16
const HELD = 2000 // ms without scrolling after the pointer has moved over the text
// Scripts that are written without spaces, and their punctuation.
const UNSPACED = "[\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\u3000-\\u303f\\uff00-\\uff65]"
const UNSPACED_START = new RegExp(`^${UNSPACED}`, "u")
const UNSPACED_END = new RegExp(`${UNSPACED}$`, "u")

addStyle(`
.higgs-text { position: relative; height: ${TEXT_HEIGHT}px; overflow: hidden auto; overscroll-behavior: contain;
    scrollbar-width: thin; scroll-behavior: smooth; line-height: ${LINE}px; overflow-wrap: anywhere; }
.higgs-text:empty::before { content: attr(data-hint); color: var(--descrip-text, #999); }
.higgs-text .higgs-who { margin-right: 4px; color: var(--descrip-text, #999); }
.higgs-text .higgs-who::after { content: ":"; }
.higgs-text .higgs-word { margin: 0 -1px; padding: 0 1px; border-radius: 3px; cursor: pointer; }
.higgs-text .higgs-word:hover { text-decoration: underline; }
.higgs-text .higgs-doubt, .higgs-text .higgs-doubt:hover { text-decoration: underline wavy var(--error-text, #ff7070);
    text-decoration-skip-ink: none; text-underline-offset: 1px; }
.higgs-text .higgs-word:focus-visible { outline: 1px solid currentColor; }
.higgs-text [aria-current] { background: var(--input-text, #ddd); color: var(--comfy-input-bg, #222); }
@media (prefers-reduced-motion: reduce) { .higgs-text { scroll-behavior: auto; } }
`)

export class SpokenText {
    /** @type {Word[]} */
    #words = []
    /** @type {HTMLSpanElement[]} one per word */
    #spans = []
    #marked = -1
    #stop = 0 // the word that Tab reaches
    #touched = -HELD // when the pointer last moved over the text

    /** @param {(word: Word, span: HTMLElement, isByKey: boolean) => void} onWord */
    constructor(onWord) {
        this.element = make("div", "higgs-text")
        this.element.setAttribute("role", "group")
        this.element.setAttribute("aria-label", say("Spoken text"))
        const play = (/** @type {EventTarget | null} */ target, isByKey = false) => {
            const at = this.#spans.indexOf(/** @type {HTMLSpanElement} */ (target))
            if (at >= 0) onWord(this.#words[at], this.#spans[at], isByKey)
            return at >= 0
        }
        this.element.addEventListener("click", (event) => play(event.target))
        this.element.addEventListener("keydown", (event) => {
            const isKnown = [" ", "Enter"].includes(event.key) ? play(event.target, true) : this.#go(event.key)
            if (!isKnown) return
            event.preventDefault()
            event.stopPropagation() // else it is a shortcut of the graph
        })
        for (const type of ["pointermove", "wheel"]) {
            this.element.addEventListener(type, () => (this.#touched = performance.now()), { passive: true })
        }
        this.element.addEventListener("wheel", (event) => event.stopPropagation(), { passive: true }) // no zoom
    }

    /** Shows these words. Elements of the same words stay. @param {Word[]} words */
    show(words) {
        if (words === this.#words) return
        let same = 0
        while (same < words.length && isSame(words[same], this.#words[same])) ++same
        this.#cut(same)
        for (let at = same; at < words.length; ++at) this.#spans.push(this.#add(words[at], words[at - 1]))
        this.#words = words
        const isExact = words.every(({ method }) => method !== "estimated")
        const click = [say("Click a word to play from there."), ...(isExact ? [] : [say("Times are estimated.")])]
        this.element.title = words.length ? click.join(" ") : ""
        if (!same) this.element.scrollTop = 0
        this.#stopAt(Math.max(0, this.#stop < words.length ? this.#stop : this.#marked))
    }

    /** Marks the word that is heard, if any. @param {number} seconds */
    mark(seconds) {
        const at = heardWord(this.#words, seconds)
        if (at === this.#marked) return
        this.#spans[this.#marked]?.removeAttribute("aria-current")
        this.#marked = at
        if (at < 0) return
        this.#spans[at].setAttribute("aria-current", "true")
        if (!this.element.contains(document.activeElement)) this.#stopAt(at)
        if (performance.now() - this.#touched > HELD) this.element.scrollTop = this.#spans[at].offsetTop - LINE
    }

    /** The word that is heard or that Tab reaches, and its element. */
    get current() {
        const at = this.#marked >= 0 ? this.#marked : this.#stop
        return at < this.#words.length ? { word: this.#words[at], span: this.#spans[at] } : null
    }

    /** Text of a word's sentence. @param {Word} word */
    sentenceOf({ sentence }) {
        const own = this.#words.filter((other) => other.sentence === sentence).map((other) => other.word)
        return own.reduce((text, word) => text + (isSpaced(text, word) ? " " : "") + word)
    }

    /** Removes the words from an index on. @param {number} count */
    #cut(count) {
        const rest = document.createRange()
        rest.selectNodeContents(this.element)
        if (count) rest.setStartAfter(this.#spans[count - 1])
        rest.deleteContents()
        this.#spans.length = count
        if (this.#marked >= count) this.#marked = -1
    }

    /**
     * @param {Word} shown
     * @param {Word | undefined} before
     */
    #add(shown, before) {
        const { word, speaker } = shown
        let turn = this.element.lastElementChild
        if (!turn || speaker !== before?.speaker) {
            turn = make("div", "higgs-turn")
            turn.setAttribute("dir", "auto")
            if (speaker) {
                const who = make("bdi", "higgs-who")
                who.textContent = speaker
                turn.append(who)
            }
            this.element.append(turn)
        } else if (before && isSpaced(before.word, word)) turn.append(" ")
        const span = make("span", "higgs-word")
        span.textContent = word
        span.setAttribute("role", "button")
        const reason = reasonOf(shown)
        if (reason) {
            span.title = reason
            span.classList.add("higgs-doubt")
        }
        turn.append(span)
        return span
    }

    /** Moves the focus by a key. True if the key does that. @param {string} key */
    #go(key) {
        const last = this.#spans.length - 1
        const to = { ArrowLeft: this.#stop - 1, ArrowRight: this.#stop + 1, Home: 0, End: last }[key]
        if (to === undefined) return false
        this.#stopAt(Math.max(0, Math.min(to, last)))
        this.#spans[this.#stop].focus()
        return true
    }

    /** Lets Tab reach this word, and no other. @param {number} at */
    #stopAt(at) {
        this.#spans[this.#stop]?.removeAttribute("tabindex")
        this.#stop = at
        this.#spans[at]?.setAttribute("tabindex", "0")
    }
}

/**
 * @param {Word} word
 * @param {Word | undefined} other
 */
function isSame(word, other) {
    return word.word === other?.word && word.speaker === other.speaker && word.doubt === other.doubt
}

/**
 * @param {string} before
 * @param {string} word
 */
function isSpaced(before, word) {
    return !(UNSPACED_END.test(before) || UNSPACED_START.test(word))
}
