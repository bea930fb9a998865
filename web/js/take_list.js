// List over the page with a node's latest runs, to play them and keep one.
import { addStyle, make } from "./elements.js"
import { openPopover } from "./popover.js"
import { say } from "./words.js"

addStyle(`
.higgs-takes { position: fixed; z-index: 10000; width: 420px; max-height: 320px; overflow: auto; padding: 4px;
    border: 1px solid var(--border-color, #444); border-radius: 6px; background: var(--comfy-menu-bg, #222);
    color: var(--input-text, #ddd); font: 12px/20px sans-serif; box-shadow: 0 4px 12px rgb(0 0 0 / 40%); }
.higgs-takes > div { display: flex; align-items: center; gap: 6px; padding: 2px 4px; border-radius: 4px; }
.higgs-takes > div:hover, .higgs-takes .higgs-shown { background: color-mix(in srgb, var(--border-color, #444) 50%,
    transparent); }
.higgs-takes .higgs-name { flex: none; font-variant-numeric: tabular-nums; }
.higgs-takes .higgs-said { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
    color: var(--descrip-text, #999); }
.higgs-takes button { flex: none; border: 0; border-radius: 4px; padding: 0 6px; background: transparent; color: inherit;
    font: inherit; cursor: pointer; }
.higgs-takes button:hover { background: var(--border-color, #444); }
.higgs-takes button:disabled { opacity: 0.5; background: transparent; cursor: default; }
.higgs-takes .higgs-hear { width: 26px; }
.higgs-takes .higgs-keep { min-width: 46px; border: 1px solid var(--border-color, #444); }
`)

/**
 * name: title; said: text; isOwn: the next run repeats it; wasKept: it was kept for that;
 * problem: why it cannot be kept, empty if it can.
 * @typedef {{name: () => string, said: string, isPlaying: () => boolean, isShown: () => boolean, isOwn: () => boolean,
 *     wasKept: () => boolean, problem: string, play: () => void, keep: () => void | Promise<void>,
 *     changes: EventTarget[]}} Take
 */

/**
 * Opens the list below an element and returns it. It dispatches "close" when it closes.
 * @param {HTMLElement} below
 * @param {string} title
 * @param {Take[]} takes
 */
export function openTakeList(below, title, takes) {
    const list = make("div", "higgs-takes")
    list.setAttribute("role", "dialog")
    list.setAttribute("aria-label", title)
    const rows = takes.map(makeRow)
    list.append(...rows.map(({ row }) => row))
    const refresh = () => rows.forEach((row) => row.refresh())
    const changes = new Set(takes.flatMap((take) => take.changes))
    for (const one of changes) one.addEventListener("change", refresh)
    for (const type of ["click", "keydown"]) list.addEventListener(type, refresh)
    refresh()
    openPopover(list, below, () => {
        for (const one of changes) one.removeEventListener("change", refresh)
        list.dispatchEvent(new Event("close"))
    })
    list.querySelector("button")?.focus()
    return list
}

/** @param {Take} take */
function makeRow(take) {
    const row = make("div", "higgs-take")
    const hear = make("button", "higgs-hear")
    const name = make("span", "higgs-name")
    const said = make("span", "higgs-said")
    const keep = make("button", "higgs-keep")
    said.textContent = said.title = take.said
    keep.title = take.problem || say("Sets this seed and keeps it fixed")
    hear.addEventListener("click", take.play)
    keep.addEventListener("click", async () => {
        try {
            await take.keep()
        } catch (error) {
            said.textContent = said.title = error instanceof Error ? error.message : String(error)
        }
    })
    row.append(hear, name, said, keep)
    const refresh = () => {
        name.textContent = take.name()
        hear.textContent = take.isPlaying() ? "❚❚" : "▶"
        hear.title = take.isPlaying() ? say("Pause") : say("Play")
        const isOwn = take.isOwn()
        keep.hidden = isOwn && !take.wasKept()
        keep.textContent = isOwn ? say("Kept") : say("Keep")
        keep.disabled = Boolean(take.problem) || isOwn
        row.classList.toggle("higgs-shown", take.isShown())
    }
    return { row, refresh }
}
