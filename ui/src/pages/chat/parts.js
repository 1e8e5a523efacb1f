// How the parts of a conversation look: messages, tool cards, reasoning, marks, files.
import { html, useEffect, useRef, useState } from "../../core/dom.js";
import { agentOf, agents, newKey } from "../../core/conversations.js";
import { bytes, clipped, dateTime, money, short, time } from "../../core/format.js";
import { call } from "../../core/gateway.js";
import { Markdown } from "../../core/markdown.js";
import { go } from "../../core/router.js";
import { settings } from "../../core/settings.js";
import { t } from "../../core/words.js";
import { Icon, copyText, told } from "../../parts/basics.js";
import { Face } from "../../parts/face.js";
import { textOf } from "./conversation.js";

const LONGEST_PLAIN = 20_000;
const PICTURE = /^image\/(png|jpeg|gif|webp)$/;
// How the Gateway tells the model of a file that it has put into the workspace.
const ATTACHED = /^\[media attached(?: \d+\/\d+)?: ([^\n\]]+?)(?: \(([^()\n]+)\))?\]\n?|^\[media attached: \d+ files\]\n?/;

function describe(tool) {
  const known = ["command", "path", "file_path", "url", "query", "action", "message", "task"];
  const name = known.find((one) => typeof tool.arguments?.[one] === "string" && tool.arguments[one].trim());
  return name ? clipped(tool.arguments[name].replace(/\s+/g, " "), 120) : "";
}

const STATES = { waiting: "waiting for approval", running: "running", done: "done", failed: "failed", denied: "denied", expired: "expired", stopped: "stopped" };

function ToolCard({ tool, sessionKey, asks }) {
  const [whole, setWhole] = useState(null);
  const running = tool.state === "running";
  const state = running && asks ? "waiting" : tool.state;
  const output = whole ?? tool.output ?? "";
  const showAll = async () => {
    try {
      const { entries } = await call("sessions.entries", { key: sessionKey, ids: [tool.omitted], raw: true });
      const message = JSON.parse(entries[0].raw).message;
      setWhole(message.content.filter((one) => one.type === "text").map((one) => one.text).join("\n"));
    } catch (error) {
      told(error);
    }
  };
  const given = Object.keys(tool.arguments || {}).length > 0;
  return html`<details class="tool ${state}" open=${running}>
    <summary><${Icon} name=${tool.name === "exec" || tool.name === "process" ? "terminal" : "tool"} /><strong>${tool.name}</strong><span class="detail">${describe(tool)}</span><span class="state">${STATES[state] ? t(STATES[state]) : ""}</span></summary>
    ${given && html`<pre class="arguments" tabindex="0" aria-label=${t("Arguments")}>${JSON.stringify(tool.arguments, null, 2)}</pre>`}
    ${output && html`<${Output} text=${output} follow=${running} />`}
    ${tool.omitted && whole === null && html`<button class="quiet" onClick=${showAll}>${t("Show all")}</button>`}
  </details>`;
}

function Output({ text, follow }) {
  const ref = useRef(null);
  useEffect(() => {
    if (follow) ref.current.scrollTop = ref.current.scrollHeight;
  }, [text, follow]);
  return html`<pre class="output" ref=${ref} tabindex="0" aria-label=${t("Output")}>${text}</pre>`;
}

function Picture({ block, sessionKey, entryId, index }) {
  const [source, setSource] = useState(null);
  const show = async () => {
    try {
      const { entries } = await call("sessions.entries", { key: sessionKey, ids: [entryId], raw: true });
      const found = JSON.parse(entries[0].raw).message.content[index];
      if (PICTURE.test(found.mimeType)) setSource(`data:${found.mimeType};base64,${found.data}`);
    } catch (error) {
      told(error);
    }
  };
  if (source) return html`<img class="picture" src=${source} alt=${t("Attached picture")} />`;
  return html`<button class="file-card" onClick=${show}><${Icon} name="image" /><span>${t("Show picture")}</span> <small>${bytes(block.bytes || 0)}</small></button>`;
}

// A file that the agent sent: an address on the web, or a file of its workspace that the Gateway reads for us.
function SentFile({ part, sessionKey }) {
  const [file, setFile] = useState(null);
  const [problem, setProblem] = useState("");
  const { address, entryId, index } = part;
  const name = address.split(/[?#]/)[0].split("/").pop() || address;
  const onWeb = /^https?:/i.test(address);
  useEffect(() => {
    if (onWeb) return;
    call("chat.media", { sessionKey, entryId, index }).then(setFile, (error) => setProblem(error.message));
  }, [sessionKey, entryId, index]);
  if (onWeb) return html`<p class="file"><a class="file-card" href=${address} target="_blank" rel="noopener noreferrer"><${Icon} name="web" /><span class="name">${name}</span></a></p>`;
  if (problem) return html`<p class="file notice">${name}: ${problem}</p>`;
  if (!file) return html`<p class="file"><span class="file-card"><${Icon} name="file" />${name}</span></p>`;
  if (PICTURE.test(file.mimeType)) return html`<img class="picture" src=${`data:${file.mimeType};base64,${file.content}`} alt=${file.fileName} />`;
  const source = `data:application/octet-stream;base64,${file.content}`;
  return html`<p class="file"><a class="file-card" href=${source} download=${file.fileName}><${Icon} name="document" /><span class="name">${file.fileName}</span></a> <small>${bytes(file.size)}</small></p>`;
}

// The files at the beginning of a message, and what the person wrote.
function withoutFiles(text) {
  const files = [];
  let rest = text;
  for (let found = ATTACHED.exec(rest); found; found = ATTACHED.exec(rest)) {
    if (found[1]) files.push({ name: found[1].split("/").pop().replace(/^[0-9a-f]{8}-/, ""), path: found[1] });
    rest = rest.slice(found[0].length);
  }
  return { files, text: rest };
}

function Action({ name, icon, onClick, disabled }) {
  return html`<button class="icon-button" aria-label=${name} title=${name} disabled=${disabled} onClick=${onClick}><${Icon} name=${icon} /></button>`;
}

function Versions({ conversation, entryId, disabled }) {
  const versions = conversation.versions.value.get(entryId);
  if (!versions) return null;
  const at = versions.findIndex((one) => one.entryId === entryId);
  const show = (index) => conversation.showVersion(versions[index]).catch(told);
  return html`<span class="versions">
    <button class="icon-button" aria-label=${t("Previous version")} disabled=${disabled || at === 0} onClick=${() => show(at - 1)}><${Icon} name="previous" /></button>
    <span>${at + 1}/${versions.length}</span>
    <button class="icon-button" aria-label=${t("Next version")} disabled=${disabled || at === versions.length - 1} onClick=${() => show(at + 1)}><${Icon} name="next" /></button>
  </span>`;
}

export function MyMessage({ row, conversation, onEdit, onDelete, pending, last }) {
  const { message, said } = row;
  const { sessionKey } = conversation;
  const [whole, setWhole] = useState(false);
  const { files, text: full } = withoutFiles(message ? textOf(message) : said.text);
  const text = whole ? full : clipped(full, LONGEST_PLAIN);
  const pictures = (message?.content || []).map((block, index) => ({ block, index })).filter(({ block }) => block.type === "image");
  const stored = message && !row.command;
  return html`<article class=${`message me${row.command ? " command" : ""}${last ? " last" : ""}`} data-entry=${message?.__openclaw.id} aria-label=${row.command ? t("Command") : t("You")}>
    <div class="bubble" dir="auto">
      ${files.map((one) => html`<p class="file" key=${one.path}><span class="file-card" title=${one.path}><${Icon} name="document" /><span class="name">${one.name}</span></span></p>`)}
      ${text && html`<div class=${row.command ? "plain command-line" : "plain"}>${text}</div>`}
      ${text !== full && html`<button class="quiet" onClick=${() => setWhole(true)}>${t("Show all")}</button>`}
      ${pictures.map(({ block, index }) => html`<${Picture} key=${index} block=${block} index=${index} sessionKey=${sessionKey} entryId=${message.__openclaw.id} />`)}
      ${said?.images > 0 && html`<small>${t("{n} pictures", { n: said.images })}</small>`}
    </div>
    <footer>
      ${pending && html`<span>${pending}</span>`}
      <span class="facts"><time title=${dateTime(row.at)}>${time(row.at)}</time></span>
      ${stored && full && html`<${Action} name=${t("Copy")} icon="copy" onClick=${() => copyText(full)} />`}
      ${onEdit && html`<${Action} name=${t("Edit")} icon="edit" onClick=${() => onEdit(message)} />`}
      ${onDelete && html`<${Action} name=${t("Delete message")} icon="trash" onClick=${() => onDelete(message)} />`}
      ${stored && html`<${Versions} conversation=${conversation} entryId=${message.__openclaw.id} disabled=${Boolean(conversation.run.value)} />`}
    </footer>
  </article>`;
}

function Part({ part, sessionKey, streaming, asks }) {
  if (part.kind === "tool") return html`<${ToolCard} tool=${part} sessionKey=${sessionKey} asks=${asks} />`;
  if (part.kind === "file") return html`<${SentFile} part=${part} sessionKey=${sessionKey} />`;
  if (part.kind === "error") return html`<p class="notice error">${part.text}</p>`;
  if (part.kind === "thinking") {
    if (!settings.value.showThinking) return null;
    return html`<${Reasoning} text=${part.text} streaming=${streaming} />`;
  }
  return html`<div class="said"><${Markdown} text=${part.text} streaming=${streaming} /></div>`;
}

// Reasoning is open while it comes, and folded afterwards. Who opens or folds it decides.
function Reasoning({ text, streaming }) {
  const [chosen, setChosen] = useState(null);
  const open = chosen ?? streaming;
  return html`<div class="thinking">
    <button class="row-button" aria-expanded=${open} onClick=${() => setChosen(!open)}><${Icon} name="brain" /><span>${t("Reasoning")}</span></button>
    ${open && html`<${Markdown} text=${text} streaming=${streaming} />`}
  </div>`;
}

// What the Gateway itself says is plain text, where an underscore is an underscore, unless it shows a command.
export function GatewayMessage({ row }) {
  return html`<article class="message gateway" aria-label=${t("Answer to a command")}>
    <div class="said notice-text" dir="auto">${row.text.includes("```") ? html`<${Markdown} text=${row.text} />` : html`<div class="plain">${row.text}</div>`}</div>
    <footer><span class="facts"><time title=${dateTime(row.at)}>${time(row.at)}</time></span></footer>
  </article>`;
}

// The run that answered: the Gateway makes the ids of a run's entries from the id of the run.
async function runOf(conversation, row, asked) {
  const { messages } = await call("messages.list", { sessionKey: conversation.sessionKey, limit: 200 });
  const begun = messages.filter((one) => one.startedAt);
  if (crypto.subtle && asked) {
    for (const one of begun) {
      const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(`${one.runId}/0`));
      const id = [...new Uint8Array(digest).slice(0, 8)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
      if (id === asked.message?.__openclaw.id) return one.runId;
    }
  }
  const fits = begun.find((one) => one.startedAt <= (row.endedAt || row.at) + 1000);
  if (!fits) throw new Error(t("The record of this message is gone."));
  return fits.runId;
}

export function AgentMessage({ row, conversation, asked, onRegenerate, asks, last }) {
  const { sessionKey } = conversation;
  const text = row.parts.filter((one) => one.kind === "text").map((one) => one.text).join("\n\n");
  const end = row.parts.length - 1;
  const agent = agents.value.list.find((one) => one.id === agentOf(conversation.fullKey)) || { id: "main" };
  const look = (page, field) => runOf(conversation, row, asked).then((run) => go(page, { session: sessionKey, [field]: run }), told);
  const fork = async () => {
    try {
      const { key } = await call("sessions.fork", { key: sessionKey, entryId: row.id, to: newKey(agentOf(conversation.fullKey)) });
      go("chat", { session: key });
      told(t("This is a copy; the original stays as it is."));
    } catch (error) {
      told(error);
    }
  };
  return html`<article class=${`message agent${last ? " last" : ""}`} data-entry=${row.id} aria-label=${t("Agent")} aria-busy=${row.running ? "true" : undefined}>
    <${Face} agent=${agent} />
    <div class="body">
    ${row.parts.map((part, index) => html`<${Part} key=${part.id || index} part=${part} sessionKey=${sessionKey} asks=${asks} streaming=${Boolean(row.running) && index === end} />`)}
    ${row.running && html`<span class="working" role="status"><i></i><i></i><i></i><span class="hidden">${t("The agent is working")}</span></span>`}
    ${!row.running && html`<footer>
      ${text && html`<${Action} name=${t("Copy")} icon="copy" onClick=${() => copyText(text)} />`}
      ${onRegenerate && html`<${Action} name=${t("Regenerate")} icon="again" onClick=${onRegenerate} />`}
      ${row.id && html`<${Action} name=${t("Fork from here")} icon="fork" onClick=${fork} />
        <${Action} name=${t("Why?")} icon="why" onClick=${() => look("messages", "why")} />
        <${Action} name=${t("What did the model see?")} icon="eye" onClick=${() => look("context", "run")} />`}
      <span class="facts"><time title=${dateTime(row.endedAt || row.at)}>${time(row.endedAt || row.at)}</time>${row.model && html`<span>${row.model}</span>`}${row.tokens > 0 && html`<span>${t("{n} tokens", { n: short(row.tokens) })}</span>`}${row.cost > 0 && html`<span>${money(row.cost)}</span>`}</span>
    </footer>`}
    </div>
  </article>`;
}

export function Mark({ row }) {
  const text = row.kind === "compaction" ? t("Compaction: what is above was summarised for the model") : row.text;
  return text ? html`<p class="mark"><span>${text}</span></p>` : null;
}
