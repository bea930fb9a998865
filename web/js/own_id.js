// Takes belong to an open workflow by its id. So what is opened from a template, a file or the list of jobs gets an id
// of its own.
import { app } from "./comfy.js"
import { NO_ID } from "./graph.js"

/**
 * True if another open workflow has this id, or will have it once the template or file is opened again.
 * @param {string} id
 * @param {import("../../tests/web/comfy").Workflow | string | null} [workflow] target of the load, or a new workflow's name
 * @param {{openSource?: string}} [options]
 */
function isShared(id, workflow, options) {
    const path = typeof workflow === "string" ? `workflows/${workflow.replace(/\.json$/, "")}.json` : workflow?.path
    const isIt = (/** @type {import("../../tests/web/comfy").Workflow} */ other) =>
        other.path !== path && other.activeState?.id === id
    return Boolean(options?.openSource) || app.extensionManager.workflow.openWorkflows.some(isIt)
}

app.registerExtension({
    name: "HiggsTTS.OwnId",
    init() {
        const load = app.loadGraphData
        app.loadGraphData = function (saved, clean, view, workflow, options, ...rest) {
            const isOurs = Boolean(saved?.id) && JSON.stringify(saved).includes('"HiggsTTS')
            const given = isOurs && isShared(saved.id, workflow, options) ? { ...saved, id: LiteGraph.uuidv4() } : saved
            return load.call(this, given, clean, view, workflow, options, ...rest)
        }
    },
    setup() {
        // ComfyUI's frontend 1.49 gives an emptied graph the zero id. New nodes there inherit values of earlier nodes
        // with the same node id: Higgs Book would write to the folder of Higgs Lines.
        const graph = app.rootGraph ?? app.graph
        const clear = graph.clear
        graph.clear = function () {
            clear.call(this)
            if (this.id === NO_ID) this.id = LiteGraph.uuidv4()
        }
    },
})
