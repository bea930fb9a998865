// What the pack's pages use of ComfyUI's frontend, 1.41 to 1.58. Its own types are published for some versions only.
export interface Widget {
    name: string
    label?: string
    type: string
    value: any
    serialize?: boolean
    serializeValue?: () => any
    options: {
        serialize?: boolean
        values?: any
        getOptionLabel?: (value?: string | null) => string
        getMinHeight?: () => number
        getMaxHeight?: () => number
    }
    element?: HTMLElement
    inputEl?: HTMLElement
    callback?: (value: any) => void
    computeSize?: () => [number, number]
    computeLayoutSize?: () => object
}

export interface Node {
    id: number | string
    comfyClass?: string
    type: string
    size: [number, number]
    widgets?: Widget[]
    graph?: Graph | null
    subgraph?: Graph
    title?: string
    inputs?: { name: string; label?: string }[]
    addInput(name: string, type: any, more?: object): { name: string; label?: string }
    isInputConnected(slot: number): boolean
    getInputNode(slot: number): Node | null
    computeSize(out?: any): [number, number]
    setSize(size: [number, number]): void
    setDirtyCanvas(foreground: boolean, background?: boolean): void
    removeWidget(widget: Widget): void
    addWidget(type: string, name: string, value: any, callback: () => void, options: object): Widget
    addDOMWidget(name: string, type: string, element: HTMLElement, options: object): Widget
    onRemoved?: () => void
    onExecuted?: (output: any) => void
    onConnectionsChange?: (...change: any[]) => void
    onDragOver?: (event: DragEvent) => boolean
    onDragDrop?: (event: DragEvent) => boolean | Promise<boolean>
    onConfigure?: (saved: { widgets_values?: any }) => void
    onSerialize?: (saved: { widgets_values?: any }) => void
}

/** What a server tells of a node. */
export interface NodeData {
    name: string
    input?: Record<string, Record<string, any> | undefined>
}

/** A node's class; what its prototype has counts for all its nodes. */
export interface NodeType {
    prototype: Node
}

/** Translations of all packs into one language. */
export interface Messages {
    nodeDefs?: Record<string, { display_name?: string; inputs?: Record<string, { tooltip?: string }> }>
    higgsTTS?: import("../../web/js/words.js").Words
}

export interface Graph {
    id?: string
    name?: string
    nodes?: Node[]
    clear(): void
    getNodeById(id: number | string): Node | null | undefined
}

export interface Setting {
    id: string
    name: string
    type: string
    defaultValue: any
    tooltip?: string
    category?: string[]
    onChange?: (value: any) => void
}

export interface Extension {
    name: string
    settings?: Setting[]
    init?(): void | Promise<void>
    setup?(): void | Promise<void>
    beforeRegisterNodeDef?(nodeType: NodeType, nodeData: NodeData): void
    afterConfigureGraph?(): void
    nodeCreated?(node: Node): void
    loadedGraphNode?(node: Node): void
    refreshComboInNodes?(): void
}

export interface Workflow {
    path: string
    activeState?: { id?: string } | null
}

export interface App {
    graph: Graph
    rootGraph?: Graph
    canvas?: { graph?: Graph | null }
    widgets: Record<string, (node: Node, name: string, input: [string, object], app: App) => { widget: Widget }>
    registerExtension(extension: Extension): void
    refreshComboInNodes(): Promise<void>
    queuePrompt(number: number, count: number): Promise<boolean>
    loadGraphData(
        saved: any,
        clean?: boolean,
        view?: boolean,
        workflow?: Workflow | string | null,
        options?: object,
        ...rest: any[]
    ): Promise<void>
    extensionManager: {
        setting: { get(id: string): any; set(id: string, value: any): Promise<void> }
        workflow: { openWorkflows: Workflow[] }
    }
}

export interface Api extends EventTarget {
    clientId?: string
    apiURL(route: string): string
    getWorkflowTemplates(): Promise<Record<string, string[]>>
    fetchApi(route: string, options?: RequestInit): Promise<Response>
    queuePrompt(...given: any[]): Promise<any>
    addEventListener(type: string, listener: (event: CustomEvent) => void, captures?: boolean): void
    removeEventListener(type: string, listener: (event: CustomEvent) => void): void
}

declare global {
    const LiteGraph: { uuidv4(): string }
    interface Window {
        comfyAPI?: { utils?: { applyTextReplacements?: (app: App, text: string) => string } }
    }
}
