// Shows the chosen voice on Higgs Load Voice, plays it, and opens the list of voices.
import { app } from "./comfy.js"
import { addStyle, make } from "./elements.js"
import { addElement, after, modelOf, setWidget, widgetOf } from "./graph.js"
import { voices } from "./server.js"
import { inWords } from "./times.js"
import { hearButton, openVoiceList } from "./voice_list.js"
import { say, translated } from "./words.js"

const HEIGHT = 26 // CSS pixels

addStyle(`
.higgs-voice { box-sizing: border-box; height: ${HEIGHT - 4}px; min-height: ${HEIGHT - 4}px; max-height: ${HEIGHT - 4}px;
    display: flex; align-items: center; gap: 4px; padding: 0 4px; overflow: hidden; color: var(--input-text, #ddd);
    font: 11px/16px sans-serif; }
.higgs-voice .higgs-said { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.higgs-voice .higgs-problem { color: var(--error-text, #ff7070); }
`)

/** @param {import("../../tests/web/comfy").Node} node */
function addStrip(node) {
    const combo = widgetOf(node, "voice")
    if (!combo) return
    const strip = make("div", "higgs-voice")
    const said = make("span", "higgs-said")
    const more = make("button", "higgs-hear")
    more.textContent = "☰"
    more.title = say("All voices, with previews")
    const hear = hearButton(() => combo.value)
    more.addEventListener("click", async () => {
        const known = await voices(modelOf(node)).catch(() => null)
        if (!known) {
            said.textContent = said.title = say("ComfyUI is not responding. Check that it is running.")
            said.classList.add("higgs-problem")
            return
        }
        openVoiceList(strip, known, (name) => {
            setWidget(node, "voice", name)
        })
    })
    for (const type of ["pointerdown", "mousedown"]) strip.addEventListener(type, (event) => event.stopPropagation())
    strip.append(hear.button, said, more)
    addElement(node, "about", strip, HEIGHT, 2)
    let toldFor = "" // model
    const tell = async () => {
        const name = combo.value
        const model = (toldFor = modelOf(node))
        const voice = (await voices(model).catch(() => [])).find((one) => one.name === name)
        if (combo.value !== name || toldFor !== model) return
        const problem = translated(voice?.problem ?? "")
        said.textContent = voice
            ? problem || `${inWords(voice.seconds, 1)} · ${voice.transcript || say("no transcript")}`
            : ""
        said.title = problem || voice?.transcript || ""
        said.classList.toggle("higgs-problem", Boolean(problem))
    }
    const callback = combo.callback
    combo.callback = function (...given) {
        callback?.apply(this, given)
        tell()
    }
    const look = () => {
        if (modelOf(node) !== toldFor) tell()
    }
    after(node, "onConnectionsChange", () => setTimeout(look)) // once the link is there
    strip.addEventListener("pointerenter", look) // Load Model may have another model now
    after(node, "onRemoved", () => {
        tellers.delete(node)
        hear.silence()
    })
    tellers.set(node, tell)
    tell()
}

/** @type {Map<import("../../tests/web/comfy").Node, () => Promise<void>>} */
const tellers = new Map()

app.registerExtension({
    name: "HiggsTTS.Voices",
    nodeCreated(node) {
        if (node.type === "HiggsTTSLoadVoice" || node.comfyClass === "HiggsTTSLoadVoice") addStrip(node)
    },
    // Values and links of a saved workflow are set after its nodes are created, and Save Voice refreshes the lists.
    afterConfigureGraph: () => tellers.forEach((tell) => tell()),
    refreshComboInNodes: () => tellers.forEach((tell) => tell()),
})
