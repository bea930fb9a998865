// Adds a button that uploads a file to ComfyUI's input folder and selects it, on nodes whose schema requests it.
import { api, app } from "./comfy.js"
import { makeRoom } from "./graph.js"
import { say } from "./words.js"

/**
 * accept: file suffixes; prefix: text before the file's name in the widget. See `upload_button` in
 * nodes/comfy/widgets.py.
 * @typedef {{widget: string, accept: string, prefix: string}} Upload
 */

/** @type {Map<string, Upload>} by the node's type */
const uploads = new Map()

/**
 * Uploads a file without replacing a different one of the same name. Returns its name on the server.
 * @param {File} file
 * @returns {Promise<string>}
 */
export async function send(file) {
    const body = new FormData()
    body.append("image", file) // ComfyUI's name for any file
    const answer = await api.fetchApi("/upload/image", { method: "POST", body })
    if (!answer.ok) throw new Error(answer.status === 413 ? say("too large") : `${answer.status} ${answer.statusText}`)
    return (await answer.json()).name
}

/**
 * Moves a node's last widget, which is not saved, below another one.
 * @param {import("../../tests/web/comfy").Node} node
 * @param {import("../../tests/web/comfy").Widget} button
 * @param {string} name of the other widget
 */
function moveBelow(node, button, name) {
    const widgets = node.widgets ?? []
    const place = widgets.findIndex((one) => one.name === name) + 1
    widgets.splice(place, 0, ...widgets.splice(-1))
    const onSerialize = node.onSerialize
    // ComfyUI saves a gap for it, and reads values in order without one.
    node.onSerialize = function (saved) {
        onSerialize?.apply(this, [saved])
        const index = this.widgets?.indexOf(button) ?? -1
        if (index >= 0 && index < (saved.widgets_values?.length ?? 0)) saved.widgets_values.splice(index, 1)
    }
}

/**
 * @param {import("../../tests/web/comfy").Node} node
 * @param {Upload} upload
 */
function addButton(node, { widget: name, accept, prefix }) {
    const choose = () => {
        const input = document.createElement("input")
        Object.assign(input, { type: "file", accept })
        input.addEventListener("change", () => input.files?.length && take(input.files[0]))
        input.click()
    }
    const button = node.addWidget("button", "upload", "", choose, { serialize: false })
    button.serialize = false
    moveBelow(node, button, name)
    makeRoom(node)
    const label = (button.label = say("choose file to upload")) // as on ComfyUI's own button
    /** @param {File} file */
    const take = async (file) => {
        button.label = say("uploading {name}...", { name: file.name })
        node.setDirtyCanvas(true)
        try {
            const value = prefix + (await send(file))
            await app.refreshComboInNodes() // values outside the list are refused
            const widget = node.widgets?.find((one) => one.name === name)
            if (widget) widget.value = value
            widget?.callback?.(value)
            button.label = label
        } catch (error) {
            const reason = error instanceof Error ? error.message : String(error)
            button.label = say("upload failed: {reason}", { reason })
        }
        node.setDirtyCanvas(true)
    }
}

app.registerExtension({
    name: "HiggsTTS.Upload",
    beforeRegisterNodeDef(nodeType, nodeData) {
        for (const inputs of Object.values(nodeData.input ?? {})) {
            for (const [widget, spec] of Object.entries(inputs ?? {})) {
                const upload = Array.isArray(spec) && spec[1]?.higgs_tts_upload
                if (upload) uploads.set(nodeData.name, { widget, ...upload })
            }
        }
    },
    nodeCreated(node) {
        const upload = uploads.get(node.comfyClass ?? node.type)
        if (upload) addButton(node, upload)
    },
})
