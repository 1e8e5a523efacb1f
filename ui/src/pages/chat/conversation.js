// The state of one open session: its messages, the run under way, what waits, and what this page is sending.
import { batch, signal } from "../../core/dom.js";
import { call, gateway } from "../../core/gateway.js";
import { told } from "../../parts/basics.js";
import { endOf } from "./rows.js";

const PAGE = 60;
const REFRESH_MS = 40;
const MOST_NOTICES = 20;
const MOST_COMMANDS = 50;
const VERSIONS_MS = 250;

export class Conversation {
  constructor(sessionKey) {
    this.sessionKey = sessionKey;
    this.fullKey = sessionKey; // As the Gateway writes it: "main" is agent:main:main.
    this.messages = signal([]); // As chat.view returns them, oldest first.
    this.notices = signal([]); // What the Gateway said itself. The transcript gets it when no run writes there.
    this.commands = signal(readCommands(sessionKey)); // Commands that were sent here. The transcript holds their answers only.
    this.versions = signal(new Map()); // The other versions of messages that were edited or answered again, by entry.
    this.editing = signal(null); // The message of mine that the composer holds to be said anew.
    this.more = signal(false); // Whether there are older ones.
    this.run = signal(null); // { runId, startedAt, items: [{ kind: "text" | "thinking" | "tool", … }] }
    this.waiting = signal([]);
    this.sending = signal([]); // Sent by this page and not answered by the Gateway yet.
    this.facts = signal({});
    this.problem = signal(null);
    this.loaded = signal(false);
    this.compacting = signal(false);
    this.seq = -1;
    this.epoch = null;
    this.held = null; // Events that came while a view was being fetched.
    this.off = gateway.on((event, payload, seq) => this.#hear(event, payload, seq));
  }

  close() {
    this.off();
    clearTimeout(this.timer);
    clearTimeout(this.versionsTimer);
  }

  // Loads the newest part again. What older part is loaded already stays, as long as both meet.
  async refresh() {
    if (this.held) {
      this.again = true;
      return;
    }
    this.held = [];
    try {
      const view = await call("chat.view", { sessionKey: this.sessionKey, limit: PAGE });
      const first = !this.loaded.value;
      batch(() => this.#show(view));
      if (view.sessionId && (first || this.versions.value.size)) this.versionsSoon();
      this.problem.value = null;
    } catch (error) {
      if (error.code !== "DISCONNECTED") this.problem.value = error.message;
    }
    const held = this.held;
    this.held = null;
    for (const [event, payload, seq] of held) this.#hear(event, payload, seq);
    if (this.again) {
      this.again = false;
      this.refresh();
    }
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), REFRESH_MS);
  }

  #show(view) {
    const known = this.messages.value;
    const first = view.messages[0]?.__openclaw.id;
    const meets = first ? known.findIndex((one) => one.__openclaw.id === first) : -1;
    const same = this.facts.value.sessionId === view.sessionId;
    if (same && meets >= 0 && view.more) {
      this.messages.value = [...known.slice(0, meets), ...view.messages];
    } else {
      this.messages.value = view.messages;
      this.more.value = view.more;
    }
    this.notices.value = this.notices.value.filter((one) => !isStored(one, view.messages));
    const { messages, run, waiting, seq, epoch, ...facts } = view;
    this.fullKey = view.sessionKey;
    this.seq = seq;
    if (this.epoch !== epoch) this.compacting.value = false; // A restart ends it without a word.
    this.epoch = epoch;
    this.facts.value = facts;
    this.waiting.value = waiting;
    if (!same) this.commands.value = this.commands.value.filter((one) => this.facts.value.sessionId === undefined || one.timestamp >= Date.now() - 5000);
    const accepted = new Set(waiting.map((one) => one.runId));
    this.sending.value = this.sending.value.filter((one) => !one.accepted && !accepted.has(one.runId));
    this.run.value = run && { runId: run.runId, startedAt: run.startedAt, askedId: run.said?.id, said: saidOf(run, messages), items: itemsOf(run, messages) };
    this.loaded.value = true;
  }

  // A conversation without branches asks once; the page is shown before.
  versionsSoon() {
    clearTimeout(this.versionsTimer);
    this.versionsTimer = setTimeout(() => this.loadVersions(), VERSIONS_MS);
  }

  async loadVersions() {
    try {
      const { messages } = await call("sessions.versions", { key: this.sessionKey });
      this.versions.value = new Map(messages.map((one) => [one.entryId, one.versions]));
    } catch {
      /* There is no transcript yet. */
    }
  }

  async loadOlder() {
    const first = this.messages.value[0];
    if (!first || !this.more.value || this.loadingOlder) return;
    this.loadingOlder = true;
    try {
      const before = first.__openclaw.id;
      const view = await call("chat.view", { sessionKey: this.sessionKey, limit: PAGE, before });
      if (this.messages.value[0] === first) {
        batch(() => {
          this.messages.value = [...view.messages, ...this.messages.value];
          this.more.value = view.more && view.messages.length > 0;
        });
      }
    } catch (error) {
      told(error);
    } finally {
      this.loadingOlder = false;
    }
  }

  // Sends a message. If the connection breaks, it is sent again under the same id, which starts nothing twice.
  async send(text, attachments = []) {
    const message = { runId: crypto.randomUUID?.() || `${Date.now()}-${Math.random()}`, text, attachments, at: Date.now() };
    if (/^\s*\/[a-z]/i.test(text)) this.#remember(message);
    this.sending.value = [...this.sending.value, message];
    await this.deliver(message);
  }

  async deliver(message) {
    const params = { ...this.#addressed(), message: message.text, idempotencyKey: message.runId };
    if (message.attachments.length) {
      params.attachments = message.attachments.map(({ name, type, content }) => ({ type: type.startsWith("image/") ? "image" : "file", mimeType: type, fileName: name, content }));
    }
    try {
      const answer = await call("chat.send", params);
      this.#mark(message, { accepted: true, failed: "" });
      for (const warning of answer.warnings || []) told(new Error(warning));
      this.soon();
    } catch (error) {
      this.#mark(message, { failed: error.message, again: error.code === "DISCONNECTED" });
    }
  }

  // A full key that does not exist is taken for a mistake, so a chat that begins here goes by its name.
  #addressed() {
    const fresh = !this.facts.value.sessionId && /^agent:([^:]+):(chat-[0-9a-f]+)$/.exec(this.sessionKey);
    return fresh ? { sessionKey: fresh[2], agentId: fresh[1] } : { sessionKey: this.sessionKey };
  }

  // After a reconnect: what may not have arrived goes out again.
  retry() {
    for (const message of this.sending.value) {
      if (message.again && !message.accepted) {
        this.#mark(message, { failed: "", again: false });
        this.deliver(this.sending.value.find((one) => one.runId === message.runId));
      }
    }
  }

  discard(runId) {
    this.sending.value = this.sending.value.filter((one) => one.runId !== runId);
  }

  #mark(message, fields) {
    this.sending.value = this.sending.value.map((one) => (one.runId === message.runId ? { ...one, ...fields } : one));
  }

  // Ends the run. What waits is answered next.
  async stop() {
    const runId = this.run.value?.runId;
    await call("chat.abort", { sessionKey: this.sessionKey, ...(runId ? { runId } : {}) }).catch(told);
  }

  // Answers a waiting message now, in place of the run under way.
  async sendNow(runId) {
    const { promoted } = await call("chat.promote", { sessionKey: this.sessionKey, runId });
    return promoted;
  }

  #remember({ runId, text, at }) {
    const one = { role: "user", content: [{ type: "text", text }], timestamp: at, __openclaw: { id: `command-${runId}` } };
    this.commands.value = [...this.commands.value, one].slice(-MOST_COMMANDS);
    writeCommands(this.sessionKey, this.commands.value);
  }

  async drop(runId) {
    const { dropped } = await call("chat.drop", { sessionKey: this.sessionKey, runId });
    this.waiting.value = this.waiting.value.filter((one) => one.runId !== runId);
    return dropped;
  }

  // Gives a waiting message other words. It keeps its place.
  async reword(runId, text) {
    const { reworded } = await call("chat.reword", { sessionKey: this.sessionKey, runId, message: text });
    if (reworded) this.waiting.value = this.waiting.value.map((one) => (one.runId === runId ? { ...one, text } : one));
    return reworded;
  }

  // Goes back to before a message of mine, so that it can be said anew.
  async backTo(message) {
    const entryId = message.__openclaw.parentId;
    await call("sessions.branch", { key: this.sessionKey, summarize: false, ...(entryId ? { entryId } : {}) });
    await this.refresh();
    this.versionsSoon();
  }

  // Says a message of mine again: with other words, or with the same for another answer. Its pictures go along.
  async sayAgain(message, text = textOf(message), more = []) {
    const pictures = await this.#picturesOf(message);
    await this.backTo(message);
    await this.send(text, [...pictures, ...more]);
    this.versionsSoon();
  }

  async #picturesOf(message) {
    if (!message.content.some((one) => one.type === "image")) return [];
    const { entries } = await call("sessions.entries", { key: this.sessionKey, ids: [message.__openclaw.id], raw: true });
    const { content } = JSON.parse(entries[0].raw).message;
    return content.filter((one) => one.type === "image").map((one, index) => ({ name: `picture-${index + 1}`, type: one.mimeType, content: one.data }));
  }

  async showVersion({ leafId }) {
    await call("sessions.branch", { key: this.sessionKey, entryId: leafId, summarize: false });
    await this.refresh();
    await this.loadVersions();
  }

  #hear(event, payload, seq) {
    if (event !== "agent" && event !== "chat") return;
    if (this.held) {
      this.held.push([event, payload, seq]);
      return;
    }
    if (payload.sessionKey !== this.fullKey) return;
    if (event === "chat" && payload.message?.model === "gateway-injected") this.#notice(payload);
    if (typeof seq === "number" && seq <= this.seq) return;
    if (event === "agent") this.#agent(payload);
    else if (event === "chat" && payload.state !== "delta") this.soon();
  }

  #notice({ runId, message }) {
    const one = { ...message, notice: true, __openclaw: { id: `say-${runId}` } };
    if (isStored(one, [...this.messages.value, ...this.notices.value])) return;
    this.notices.value = [...this.notices.value, one].slice(-MOST_NOTICES);
  }

  #agent({ runId, stream, data }) {
    if (stream === "lifecycle") {
      if (data.phase === "start") {
        const said = this.waiting.value.find((one) => one.runId === runId);
        this.run.value = { runId, startedAt: data.startedAt, said, items: [] };
        this.waiting.value = this.waiting.value.filter((one) => one.runId !== runId);
      }
      this.soon();
      return;
    }
    if (stream === "queue") {
      this.soon(); // Somebody, perhaps in another tab, sent or changed a message that waits.
      return;
    }
    if (stream === "compaction") {
      this.compacting.value = data.phase === "start";
      if (data.phase === "end") this.soon();
      return;
    }
    const known = this.run.value?.runId === runId;
    // Events of tools have no number. This one came while a view was being fetched, in which its run has ended.
    if (stream === "tool" && !known) return;
    const run = known ? this.run.value : { runId, startedAt: Date.now(), items: [] };
    const items = withEvent(run.items, stream, data);
    if (items !== run.items) this.run.value = { ...run, items };
  }
}

const MOST_ITEMS = 100;

function withEvent(items, stream, data) {
  const last = items[items.length - 1];
  const rest = items.slice(-MOST_ITEMS);
  if (stream === "assistant") {
    const begins = data.text !== undefined && data.text === data.delta && last?.kind === "text";
    if (last?.kind === "text" && !begins) return [...rest.slice(0, -1), { ...last, text: last.text + data.delta }];
    return [...rest, { kind: "text", text: data.delta }];
  }
  if (stream === "thinking") {
    if (last?.kind === "thinking") return [...rest.slice(0, -1), { kind: "thinking", text: data.text }];
    return [...rest, { kind: "thinking", text: data.text }];
  }
  if (stream === "tool") {
    const found = items.find((one) => one.kind === "tool" && one.id === data.toolCallId);
    const tool = toolItem(data, found);
    return found ? items.map((one) => (one === found ? tool : one)) : [...rest, tool];
  }
  return items;
}

function toolItem(data, old = {}) {
  const result = data.result || data.partialResult;
  const said = result?.content?.filter((one) => one.type === "text").map((one) => one.text).join("\n");
  return {
    kind: "tool",
    id: data.toolCallId,
    name: data.name,
    arguments: data.args ?? old.arguments ?? {},
    output: said ?? old.output ?? "",
    state: data.phase === "result" ? endOf(data.isError, said ?? "") : "running",
  };
}

function isStored(notice, messages) {
  return messages.some((one) => one.role === "assistant" && one.timestamp === notice.timestamp && textOf(one) === textOf(notice));
}

// The message that the run answers, until the transcript holds it.
function saidOf(run, messages) {
  return run.said && !messages.some((one) => one.__openclaw.id === run.said.id) ? run.said : null;
}

// The live part of a run, without what the stored messages already show.
function itemsOf(run, messages) {
  const items = [];
  const last = [...messages].reverse().find((one) => one.role === "assistant");
  const stored = last ? textOf(last) : "";
  if (run.thinking) items.push({ kind: "thinking", text: run.thinking });
  if (run.text && !(stored && stored.startsWith(run.text.trim()))) items.push({ kind: "text", text: run.text });
  for (const tool of run.tools || []) items.push(toolItem(tool));
  return items;
}

const commandsKey = (sessionKey) => `openclaw.control.commands:${sessionKey}`;

function readCommands(sessionKey) {
  try {
    const found = JSON.parse(sessionStorage.getItem(commandsKey(sessionKey)) || "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return [];
  }
}

function writeCommands(sessionKey, commands) {
  try {
    sessionStorage.setItem(commandsKey(sessionKey), JSON.stringify(commands));
  } catch {
    /* A browser that stores nothing shows them until the page is left. */
  }
}

export function textOf(message) {
  return message.content.filter((one) => one.type === "text").map((one) => one.text).join("\n\n");
}
