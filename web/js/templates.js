// Shows our templates in the page's language: names, titles, labels and notes. Their files are English. A workflow is
// saved as it is shown, so it may be in any of our languages. What a user has changed is no longer ours, and stays.
import { api, app } from "./comfy.js"
import { englishOf, saidHere } from "./words.js"

const FILE = /^(\/workflow_templates\/[^/]+\/)(.+?)(\.json)?$/ // with a template's name: of its workflow, or its picture

/** @param {import("../../tests/web/comfy").Node} node */
function translate(node) {
    if (node.title) node.title = saidHere(node.title)
    for (const input of node.inputs ?? []) if (input.label) input.label = saidHere(input.label)
    if (node.subgraph?.name) node.subgraph.name = saidHere(node.subgraph.name)
    const [note] = node.type === "MarkdownNote" ? (node.widgets ?? []) : []
    if (typeof note?.value === "string") note.value = saidHere(note.value)
}

// The template browser shows the names of files, and asks for a file by the name that it shows.
const { getWorkflowTemplates, apiURL } = api
api.getWorkflowTemplates = async function () {
    const packs = Object.entries(await getWorkflowTemplates.call(this))
    return Object.fromEntries(packs.map(([pack, names]) => [pack, names.map(saidHere)]))
}
api.apiURL = function (route) {
    const [, folder, name, ending = ""] = route.match(FILE) ?? []
    return apiURL.call(this, name ? folder + englishOf(name) + ending : route)
}

app.registerExtension({
    name: "HiggsTTS.Templates",
    // A blueprint has its title only after it is made.
    nodeCreated: (node) => queueMicrotask(() => translate(node)),
    loadedGraphNode: translate,
})
