// Chat: one conversation, live.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../core/dom.js";
import { agentOf, agents, currentAgent, mainSession, rowOf, setOpened, titleOf } from "../../core/conversations.js";
import { approvals } from "../../core/approvals.js";
import { dateTime } from "../../core/format.js";
import { call, connection } from "../../core/gateway.js";
import { address, go, route } from "../../core/router.js";
import { change, draft, settings } from "../../core/settings.js";
import { t } from "../../core/words.js";
import { Dialog, Icon, Notice, told, useCall } from "../../parts/basics.js";
import { Face } from "../../parts/face.js";
import { Question } from "../../parts/question.js";
import { ConversationMenu } from "../../parts/sidebar.js";
import { WindowList } from "../../parts/window-list.js";
import { Composer } from "./composer.js";
import { Conversation, textOf } from "./conversation.js";
import { AgentMessage, GatewayMessage, Mark, MyMessage } from "./parts.js";
import { rowsOf } from "./rows.js";

function useConversation(sessionKey) {
  const conversation = useMemo(() => new Conversation(sessionKey), [sessionKey]);
  const { phase } = connection.value;
  useEffect(() => () => conversation.close(), [conversation]);
  useEffect(() => {
    const again = () => conversation.refresh();
    addEventListener("openclaw:facts", again);
    return () => removeEventListener("openclaw:facts", again);
  }, [conversation]);
  useEffect(() => {
    if (phase !== "open") return;
    conversation.refresh();
    conversation.retry();
  }, [conversation, phase]);
  return conversation;
}

export function Chat() {
  const sessionKey = route.value.query.session || settings.value.sessionKey || mainSession();
  const conversation = useConversation(sessionKey);
  const [text, setText] = useState(() => draft(sessionKey));
  const input = useRef(null);
  // Before the next key is heard: a later effect would put the draft over what was typed meanwhile.
  useLayoutEffect(() => setText(draft(sessionKey)), [sessionKey]);
  useEffect(() => {
    if (route.value.query.session) change({ sessionKey });
    else go("chat", { session: sessionKey }, { replace: true });
    if (matchMedia("(hover: hover)").matches) input.current?.focus();
    const again = () => {
      setText(draft(sessionKey));
      input.current?.focus();
    };
    addEventListener("openclaw:draft", again);
    return () => removeEventListener("openclaw:draft", again);
  }, [sessionKey]);
  const { fullKey } = conversation;
  useEffect(() => {
    setOpened(fullKey);
    return () => setOpened("");
  }, [fullKey, conversation.loaded.value]);
  return html`<section class="chat" aria-label=${t("Chat")}>
    <${Head} conversation=${conversation} />
    ${conversation.problem.value && html`<${Notice} kind="error">${conversation.problem.value}<//>`}
    <${Log} conversation=${conversation} setText=${setText} input=${input} />
    <${Composer} conversation=${conversation} text=${text} setText=${setText} inputRef=${input} busy=${Boolean(conversation.run.value)} />
  </section>`;
}

function Head({ conversation }) {
  const [details, setDetails] = useState(false);
  const [exports, setExports] = useState(false);
  const facts = conversation.facts.value;
  const { fullKey } = conversation;
  const known = rowOf(fullKey);
  const row = known || { key: fullKey, label: facts.label, displayName: facts.displayName, subject: facts.subject, pinnedAt: facts.pinnedAt };
  const agent = agents.value.list.find((one) => one.id === agentOf(fullKey)) || { id: agentOf(fullKey) };
  const more = (done) => html`
    <button class="row-button" onClick=${() => (done(false), setDetails(true))}><${Icon} name="document" /><span>${t("Details")}</span></button>
    <button class="row-button" onClick=${() => (done(false), setExports(true))}><${Icon} name="download" /><span>${t("Export")}</span></button>
    <button class="row-button" onClick=${() => (done(), print())}><${Icon} name="print" /><span>${t("Print")}</span></button>`;
  return html`<header class="chat-head">
    <${Face} agent=${agent} size="small" />
    <h1>${titleOf(row)}</h1>
    <span class="tools">${facts.sessionId && html`<${ConversationMenu} row=${row} more=${more} />`}</span>
    ${exports && html`<${ExportDialog} sessionKey=${fullKey} title=${titleOf(row)} onClose=${() => setExports(false)} />`}
    ${details && html`<${Dialog} title=${t("Details")} onClose=${() => setDetails(false)}><dl class="facts-list">
      <dt>${t("Title")}</dt><dd>${titleOf(row)}</dd>
      <dt>${t("Session key")}</dt><dd><code>${fullKey}</code></dd>
      <dt>${t("Session id")}</dt><dd><code>${facts.sessionId}</code></dd>
      <dt>${t("Agent")}</dt><dd>${agent.name || agent.id}</dd>
      ${known?.channel && known.channel !== "unknown" && html`<dt>${t("Channel")}</dt><dd>${known.channel}</dd>`}
      ${facts.model && html`<dt>${t("Model")}</dt><dd>${facts.modelProvider ? `${facts.modelProvider}/` : ""}${facts.model}</dd>`}
      ${known?.updatedAt && html`<dt>${t("Active")}</dt><dd>${dateTime(known.updatedAt)}</dd>`}
    </dl><p class="buttons"><a href=${address("transcript", { session: fullKey })}>${t("Transcript")}</a><a href=${address("context", { session: fullKey })}>${t("Context")}</a><a href=${address("messages", { session: fullKey })}>${t("Messages")}</a></p><//>`}
  </header>`;
}

const FORMATS = [
  { format: "markdown", name: "Markdown", icon: "document", ending: "md", type: "text/markdown", hint: "Text with marks, for notes and editors" },
  { format: "html", name: "HTML", icon: "web", ending: "html", type: "text/html", hint: "One page that any browser shows" },
  { format: "public", name: "JSON", icon: "terminal", ending: "json", type: "application/json", hint: "For programs, as an array of messages" },
];

function ExportDialog({ sessionKey, title, onClose }) {
  const [busy, setBusy] = useState("");
  const save = async ({ format, ending, type }) => {
    setBusy(format);
    try {
      const items = [];
      let sessionId;
      for (let cursor = 0; cursor !== null; ) {
        const page = await call("sessions.export", { key: sessionKey, format, cursor, ...(sessionId ? { sessionId } : {}) });
        items.push(...page.items);
        sessionId = page.sessionId;
        cursor = page.next ?? null;
      }
      const text = format === "public" ? `[\n${items.map((one) => JSON.stringify(one)).join(",\n")}\n]\n` : items.join("");
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([text], { type }));
      link.download = `${title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation"}.${ending}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      onClose();
    } catch (error) {
      setBusy("");
      told(error);
    }
  };
  return html`<${Dialog} title=${t("Export")} onClose=${onClose}><div class="suggestions formats">
    ${FORMATS.map((one) => html`<button key=${one.format} disabled=${busy !== ""} aria-busy=${busy === one.format} onClick=${() => save(one)}><${Icon} name=${one.icon} /><span><strong>${one.name}</strong><small>${t(one.hint)}</small></span></button>`)}
  </div><//>`;
}

const DEMO = "local/smollm2-135m-instruct"; // The model that is part of the Gateway.
const SUGGESTIONS = [
  { icon: "sparkles", name: "What can you do?", hint: "Tools, files, schedules and channels", text: "What can you do for me? Give me five concrete examples with the tools you have." },
  { icon: "file", name: "Look at my workspace", hint: "Which files are there?", text: "List the files in your workspace and tell me in one line what each is for." },
  { icon: "edit", name: "Remember something about me", hint: "It stays for later chats", text: "I want you to remember a few things about me. Ask me three short questions, one at a time." },
  { icon: "clock", name: "Set a reminder", hint: "Once, or again and again", text: "Remind me in two hours to take a break, and tell me how I can see and change my reminders." },
];

// A conversation in which nothing was said yet: who answers, and what one could begin with.
function Welcome({ conversation, setText, input }) {
  const key = conversation.fullKey;
  const agent = agents.value.list.find((one) => one.id === agentOf(key)) || currentAgent();
  const status = useCall("models.status").data;
  const chosen = status?.defaultModel || "";
  const demo = chosen === DEMO;
  const start = (one) => {
    conversation.send(t(one.text));
    input.current?.focus();
  };
  const edit = (event, one) => {
    event.preventDefault();
    setText(t(one.text));
    input.current?.focus();
  };
  const needsModel = status && (!chosen || demo);
  return html`<div class="welcome">
    ${needsModel && html`<div class="setup"><${Icon} name="sparkles" /><p>${demo ? t("A small demo model answers for now. Connect a real one for real work.") : t("No model is connected yet. The agent needs one to answer.")}</p><button class="primary" onClick=${() => go("settings", { find: "models" })}>${t("Set up a model")}</button></div>`}
    <${Face} agent=${agent} size="large" />
    <h2>${agent.name ? t("What can {name} do for you?", { name: agent.name }) : t("What can I do for you?")}</h2>
    <p>${t("Your chats are kept on your own machine. Write below, or begin with one of these.")}</p>
    <div class="suggestions">${SUGGESTIONS.map((one) => html`<button key=${one.name} onClick=${() => start(one)} onContextMenu=${(event) => edit(event, one)}><${Icon} name=${one.icon} /><span><strong>${t(one.name)}</strong><small>${t(one.hint)}</small></span></button>`)}</div>
  </div>`;
}

function Log({ conversation, setText, input }) {
  const { sessionKey } = conversation;
  const messages = conversation.messages.value;
  const notices = conversation.notices.value;
  const commands = conversation.commands.value;
  const run = conversation.run.value;
  const editing = conversation.editing.value;
  const rows = useMemo(() => {
    const from = editing ? messages.findIndex((one) => one.__openclaw.id === editing.__openclaw.id) : -1;
    const extras = [...notices, ...commands].sort((one, other) => one.timestamp - other.timestamp);
    if (from >= 0) return rowsOf(messages.slice(0, from), null, extras.filter((one) => one.timestamp < messages[from].timestamp));
    return rowsOf(messages, run, extras);
  }, [messages, notices, commands, run, editing]);
  const isMine = (one) => one.role === "user" && one.__openclaw.id;
  const lastOfMine = [...messages].reverse().find(isMine);
  const mayChange = !run && !editing && connection.value.phase === "open";
  const asks = approvals.value.filter((one) => one.request.sessionKey === conversation.fullKey);

  const edit = (message) => {
    conversation.editing.value = message;
    setText(textOf(message));
    input.current?.focus();
  };
  const remove = async (message) => {
    try {
      await conversation.backTo(message);
      told(t("Deleted from the conversation; the transcript keeps it as a branch."));
    } catch (error) {
      told(error);
    }
  };

  // The message of mine that each answer belongs to.
  const askedBy = useMemo(() => {
    const found = new Map();
    let mine = null;
    for (const row of rows) {
      if (row.side === "me" && !row.command) mine = row;
      else if (row.side === "agent") found.set(row.key, mine);
    }
    return found;
  }, [rows]);
  const lastKey = rows.at(-1)?.key;
  const render = (row) => {
    const last = row.key === lastKey;
    if (row.side === "mark") return html`<${Mark} row=${row} />`;
    if (row.side === "gateway") return html`<${GatewayMessage} row=${row} />`;
    if (row.side === "agent") {
      const asked = askedBy.get(row.key);
      const again = mayChange && asked?.message ? () => conversation.sayAgain(asked.message).catch(told) : null;
      return html`<${AgentMessage} row=${row} conversation=${conversation} asked=${asked} asks=${asks.length > 0} last=${last} onRegenerate=${again} />`;
    }
    const mine = mayChange && row.message && !row.command;
    return html`<${MyMessage} row=${row} conversation=${conversation} last=${last} onEdit=${mine ? edit : null} onDelete=${mine && row.message === lastOfMine ? remove : null} />`;
  };
  const empty = conversation.loaded.value && !rows.length && !conversation.sending.value.length && !editing;
  const footer = html`
    ${!conversation.loaded.value && !conversation.problem.value && html`<div class="loading" aria-hidden="true">${[62, 88, 74].map((width) => html`<i class="skeleton" style=${{ width: `${width}%` }}></i>`)}</div>`}
    ${empty && html`<${Welcome} conversation=${conversation} setText=${setText} input=${input} />`}
    ${conversation.compacting.value && html`<p class="mark"><span>${t("Condensing older messages…")}</span></p>`}
    ${asks.map((one) => html`<${Question} key=${one.id} approval=${one} />`)}
    <${Outgoing} conversation=${conversation} setText=${setText} input=${input} />`;
  return html`<${WindowList} rows=${rows} render=${render} label=${t("Conversation")} resetKey=${sessionKey}
    onTop=${() => !editing && conversation.loadOlder()} footer=${footer} />`;
}

// What this page sends now, then what waits for its turn.
function Outgoing({ conversation, setText, input }) {
  const [editing, setEditing] = useState(null);
  const save = async (event) => {
    event.preventDefault();
    const { runId, text } = editing;
    if (!text.trim()) return;
    try {
      if (!(await conversation.reword(runId, text.trim()))) {
        // Its answer has begun. The new words are kept where they can be sent.
        setText(text);
        input.current?.focus();
        told(t("It is being answered already; your words are below."));
      }
      setEditing(null);
    } catch (error) {
      told(error);
    }
  };
  const drop = (one) => conversation.drop(one.runId).catch(told);
  const now = (one) => conversation.sendNow(one.runId).catch(told);
  const waiting = conversation.waiting.value;
  return html`
    ${conversation.sending.value.filter((one) => one.failed || !conversation.commands.value.some((sent) => sent.__openclaw.id === `command-${one.runId}`)).map((one) => html`<div key=${one.runId}>
      <${MyMessage} conversation=${conversation} row=${{ said: { text: one.text, images: one.attachments.length }, at: one.at }} pending=${one.again ? t("It is sent when the Gateway is back.") : one.failed || t("Sending…")} />
      ${one.failed && !one.again && html`<div class="row-actions">
        <button class="quiet" onClick=${() => conversation.deliver(one)}>${t("Try again")}</button>
        <button class="quiet" onClick=${() => conversation.discard(one.runId)}>${t("Delete")}</button>
      </div>`}
    </div>`)}
    ${waiting.length > 0 && html`<section class="waiting" aria-label=${t("Waiting messages")}>
      <h2>${t("Waiting")}</h2>
      <ul>${waiting.map((one) => editing?.runId === one.runId ? html`<li key=${one.runId}>
        <form class="reword" onSubmit=${save} onKeyDown=${(event) => event.key === "Escape" && setEditing(null)}>
          <textarea rows="2" dir="auto" aria-label=${t("Waiting message")} value=${editing.text} ref=${(field) => field && !field.dataset.met && ((field.dataset.met = "1"), field.focus())}
            onInput=${(event) => setEditing({ ...editing, text: event.target.value })}
            onKeyDown=${(event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && save(event)}></textarea>
          <button class="primary" type="submit">${t("Save")}</button>
          <button class="quiet" type="button" onClick=${() => setEditing(null)}>${t("Cancel")}</button>
        </form>
      </li>` : html`<li key=${one.runId}>
        <span class="plain" dir="auto">${one.text}${one.images > 0 && ` (${t("{n} pictures", { n: one.images })})`}</span>
        <button class="icon-button" aria-label=${t("Send now")} title=${t("Send now")} onClick=${() => now(one)}><${Icon} name="now" /></button>
        <button class="icon-button" aria-label=${t("Edit waiting message")} title=${t("Edit")} onClick=${() => setEditing({ runId: one.runId, text: one.text })}><${Icon} name="edit" /></button>
        <button class="icon-button" aria-label=${t("Drop waiting message")} title=${t("Remove")} onClick=${() => drop(one)}><${Icon} name="trash" /></button>
      </li>`)}</ul>
    </section>`}`;
}
