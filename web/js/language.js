// Loads the page's words, and translates what ComfyUI's frontend leaves in English on our nodes: tooltips of text boxes,
// placeholders, labels of options and growing sockets. When the language changes, the frontend registers and creates all
// nodes anew.
import { api, app } from "./comfy.js"
import { learn, say, translated } from "./words.js"

/** @type {Record<string, import("../../tests/web/comfy").Messages | undefined>} by language */
let messages = {}

/** @returns {string} */
function language() {
    return app.extensionManager.setting.get("Comfy.Locale")
}

/** A node type's name in the page's language. @param {string} type */
export function nameOf(type) {
    return messages[language()]?.nodeDefs?.[type]?.display_name
}

/** @param {import("../../tests/web/comfy").Widget} widget */
function labelOptions(widget) {
    const { values } = widget.options
    if (widget.type !== "combo" || !Array.isArray(values)) return
    // Lists with labels have no search field, so other lists get none.
    if (values.every((value) => translated(value) === value)) return
    widget.options.getOptionLabel = (value) => translated(value ?? "")
}

/**
 * Names a growing socket, of a voice or a clip, unless the user has renamed it. Labels are saved with a workflow, so it
 * may be in any language.
 * @param {{name: string, label?: string}} input
 */
function labelSocket(input) {
    const [, kind, number] = input.name.match(/^(?:voices|more_clips)\.(voice|audio)_(\d+)$/) ?? []
    if (!number) return
    const english = `${kind}_{number}`
    const forms = Object.values(messages).map((message) => message?.higgsTTS?.page?.[english])
    const ours = [english, ...forms].map((form) => form?.replace("{number}", number))
    if (input.label && !ours.includes(input.label)) return
    input.label = kind === "voice" ? say("voice_{number}", { number }) : say("audio_{number}", { number })
}

app.registerExtension({
    name: "HiggsTTS.Language",
    async init() {
        messages = await (await api.fetchApi("/i18n")).json()
        const words = Object.entries(messages).map(([name, message]) => [name, message?.higgsTTS])
        learn(Object.fromEntries(words), language)
    },
    beforeRegisterNodeDef(nodeType, nodeData) {
        if (!nodeData.name.startsWith("HiggsTTS")) return
        const { addInput, onConfigure } = nodeType.prototype
        nodeType.prototype.addInput = function (...given) {
            const input = addInput.apply(this, given)
            labelSocket(input)
            return input
        }
        nodeType.prototype.onConfigure = function (saved) {
            onConfigure?.apply(this, [saved])
            this.inputs?.forEach(labelSocket)
        }
        const said = messages[language()]?.nodeDefs?.[nodeData.name]?.inputs
        if (!said) return
        for (const inputs of Object.values(nodeData.input ?? {})) {
            for (const [name, spec] of Object.entries(inputs ?? {})) {
                const options = Array.isArray(spec) && spec[1]
                if (!options || !said[name]) continue
                options.tooltip = said[name].tooltip
                if (options.placeholder) options.placeholder = translated(options.placeholder)
            }
        }
    },
    nodeCreated(node) {
        if ((node.comfyClass ?? node.type)?.startsWith("HiggsTTS")) node.widgets?.forEach(labelOptions)
    },
})
