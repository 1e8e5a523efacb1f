// How the parts of a conversation look: messages, tool cards, reasoning, marks, waiting messages.
import { html, useEffect, useRef, useState } from "../../core/dom.js";
import { bytes, clipped, dateTime, time } from "../../core/format.js";
import { call } from "../../core/gateway.js";
import { Markdown } from "../../core/markdown.js";
import { settings } from "../../core/settings.js";
import { t } from "../../core/words.js";
import { Icon, copyText, told } from "../../parts/basics.js";
import { textOf } from "./conversation.js";

function describe(tool) {
  const known = ["command", "path", "file_path", "url", "query", "action", "message", "task"];
  const name = known.find((one) => typeof tool.arguments?.[one] === "string" && tool.arguments[one].trim());
  return name ? clipped(tool.arguments[name].replace(/\s+/g, " "), 120) : "";
}

function ToolCard({ tool, sessionKey }) {
  const [whole, setWhole] = useState(null);
  const running = tool.state === "running";
  const state = { running: t("running"), done: t("done"), failed: t("failed"), unknown: "" }[tool.state] ?? "";
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
  return html`<details class="tool ${tool.state}" open=${running}>
    <summary><${Icon} name="tool" /><strong>${tool.name}</strong><span class="detail">${describe(tool)}</span><span class="state">${state}</span></summary>
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
  return html`<button class="quiet" onClick=${show}>${t("Show picture")} (${bytes(block.bytes || 0)})</button>`;
}

const PICTURE = /^image\/(png|jpeg|gif|webp)$/;

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
  if (onWeb) return html`<p class="file"><a href=${address} target="_blank" rel="noopener noreferrer">${name}</a></p>`;
  if (problem) return html`<p class="file notice">${name}: ${problem}</p>`;
  if (!file) return html`<p class="file">${name}</p>`;
  if (PICTURE.test(file.mimeType)) return html`<img class="picture" src=${`data:${file.mimeType};base64,${file.content}`} alt=${file.fileName} />`;
  const source = `data:application/octet-stream;base64,${file.content}`;
  return html`<p class="file"><a href=${source} download=${file.fileName}>${file.fileName}</a> (${bytes(file.size)})</p>`;
}

const LONGEST_PLAIN = 20_000;

export function MyMessage({ row, sessionKey, onEdit, onDelete, pending }) {
  const { message, said } = row;
  const [whole, setWhole] = useState(false);
  const full = message ? textOf(message) : said.text;
  const text = whole ? full : clipped(full, LONGEST_PLAIN);
  const pictures = (message?.content || []).map((block, index) => ({ block, index })).filter(({ block }) => block.type === "image");
  return html`<article class="message me" data-entry=${message?.__openclaw.id} aria-label=${t("You")}>
    <div class="bubble" dir="auto">
      ${text && html`<div class="plain">${text}</div>`}
      ${text !== full && html`<button class="quiet" onClick=${() => setWhole(true)}>${t("Show all")}</button>`}
      ${pictures.map(({ block, index }) => html`<${Picture} key=${index} block=${block} index=${index} sessionKey=${sessionKey} entryId=${message.__openclaw.id} />`)}
      ${said?.images > 0 && html`<small>${t("{n} pictures", { n: said.images })}</small>`}
    </div>
    <footer>
      <time title=${dateTime(row.at)}>${time(row.at)}</time>${pending && html`<span>${pending}</span>`}
      ${onEdit && html`<button class="quiet" onClick=${() => onEdit(message)}>${t("Edit")}</button>`}
      ${onDelete && html`<button class="quiet" onClick=${() => onDelete(message)}>${t("Delete")}</button>`}
    </footer>
  </article>`;
}

function Part({ part, sessionKey, streaming }) {
  if (part.kind === "tool") return html`<${ToolCard} tool=${part} sessionKey=${sessionKey} />`;
  if (part.kind === "file") return html`<${SentFile} part=${part} sessionKey=${sessionKey} />`;
  if (part.kind === "error") return html`<p class="notice error">${part.text}</p>`;
  if (part.kind === "thinking") {
    if (!settings.value.showThinking) return null;
    return html`<details class="thinking" open=${streaming}><summary>${t("Reasoning")}</summary><${Markdown} text=${part.text} streaming=${streaming} /></details>`;
  }
  // What the Gateway itself says is plain text, where an underscore is an underscore, unless it shows a command.
  if (part.notice && !part.text.includes("```")) return html`<div class="said notice-text plain" dir="auto">${part.text}</div>`;
  return html`<div class=${part.notice ? "said notice-text" : "said"}><${Markdown} text=${part.text} streaming=${streaming} /></div>`;
}

export function AgentMessage({ row, sessionKey }) {
  const words = row.parts.filter((one) => one.kind === "text").map((one) => one.text).join("\n\n");
  const last = row.parts.length - 1;
  return html`<article class="message agent" data-entry=${row.id} aria-label=${t("Agent")} aria-busy=${row.running ? "true" : undefined}>
    ${row.parts.map((part, index) => html`<${Part} key=${part.id || index} part=${part} sessionKey=${sessionKey} streaming=${Boolean(row.running) && index === last} />`)}
    ${row.running && html`<span class="working" role="status"><i></i><i></i><i></i><span class="hidden">${t("The agent is working")}</span></span>`}
    ${!row.running && html`<footer><time title=${dateTime(row.at)}>${time(row.at)}</time>${row.model && html`<span>${row.model}</span>`}
      ${words && html`<button class="quiet" onClick=${() => copyText(words)}>${t("Copy")}</button>`}</footer>`}
  </article>`;
}

export function Mark({ row }) {
  const text = row.kind === "compaction" ? t("Compaction: what is above was summarised for the model") : row.text;
  return text ? html`<p class="mark"><span>${text}</span></p>` : null;
}
