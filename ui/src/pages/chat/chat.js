// Chat: one session's conversation, live.
import { html, useEffect, useMemo, useRef, useState } from "../../core/dom.js";
import { approvals } from "../../core/approvals.js";
import { connection } from "../../core/gateway.js";
import { go, route } from "../../core/router.js";
import { change, draft, settings } from "../../core/settings.js";
import { t } from "../../core/words.js";
import { Empty, Icon, Notice, told } from "../../parts/basics.js";
import { Question } from "../../parts/question.js";
import { SessionSelect, mainSession } from "../../parts/session-select.js";
import { WindowList } from "../../parts/window-list.js";
import { Composer } from "./composer.js";
import { Conversation, textOf } from "./conversation.js";
import { AgentMessage, Mark, MyMessage } from "./parts.js";
import { rowsOf } from "./rows.js";

function useConversation(sessionKey) {
  const conversation = useMemo(() => new Conversation(sessionKey), [sessionKey]);
  const { phase } = connection.value;
  useEffect(() => () => conversation.close(), [conversation]);
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
  useEffect(() => setText(draft(sessionKey)), [sessionKey]);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) input.current?.focus();
  }, [sessionKey]);
  const choose = (key) => {
    change({ sessionKey: key });
    go("chat", { session: key });
  };
  const facts = conversation.facts.value;
  return html`<section class="chat" aria-label=${t("Chat")}>
    <header class="chat-head">
      <h1 class="hidden">${t("Chat")}</h1>
      <${SessionSelect} value=${sessionKey} onChange=${choose} create />
      <span class="buttons">
        ${facts.reasoningLevel && facts.reasoningLevel !== "off" && html`<label class="check hint"><input type="checkbox" checked=${settings.value.showThinking} onChange=${(event) => change({ showThinking: event.target.checked })} /> ${t("Show reasoning")}</label>`}
        <${Fullness} facts=${facts} />
      </span>
    </header>
    ${conversation.problem.value && html`<${Notice} kind="error">${conversation.problem.value}<//>`}
    <${Log} conversation=${conversation} setText=${setText} input=${input} />
    <${Composer} conversation=${conversation} text=${text} setText=${setText} inputRef=${input} busy=${Boolean(conversation.run.value)} />
  </section>`;
}

function Fullness({ facts }) {
  const { totalTokens, contextTokens, model } = facts;
  if (!contextTokens || !totalTokens) return model ? html`<span class="chip">${model}</span>` : null;
  const share = Math.min(100, Math.round((100 * totalTokens) / contextTokens));
  return html`<span class="chip" title=${`${totalTokens} / ${contextTokens}`}>${model} · ${t("context {n} %", { n: share })}</span>`;
}

function Log({ conversation, setText, input }) {
  const { sessionKey } = conversation;
  const messages = conversation.messages.value;
  const notices = conversation.notices.value;
  const run = conversation.run.value;
  const rows = useMemo(() => rowsOf([...messages, ...notices], run), [messages, notices, run]);
  const lastOfMine = [...messages].reverse().find((one) => one.role === "user");
  const mayChange = !run && lastOfMine && connection.value.phase === "open";

  const goBack = async (message, then) => {
    try {
      await conversation.backTo(message);
      then();
    } catch (error) {
      told(error);
    }
  };
  const edit = (message) => goBack(message, () => {
    setText(textOf(message));
    input.current?.focus();
  });
  const remove = (message) => goBack(message, () => told(t("Deleted from the conversation; the transcript keeps it as a branch.")));

  const render = (row) => {
    if (row.side === "mark") return html`<${Mark} row=${row} />`;
    if (row.side === "agent") return html`<${AgentMessage} row=${row} sessionKey=${sessionKey} />`;
    const mine = mayChange && row.message === lastOfMine;
    return html`<${MyMessage} row=${row} sessionKey=${sessionKey} onEdit=${mine ? edit : null} onDelete=${mine ? remove : null} />`;
  };
  const empty = conversation.loaded.value && !rows.length && !conversation.sending.value.length;
  const footer = html`
    ${empty && html`<${Empty}>${t("Nothing said yet. Write a message below; / lists the commands.")}<//>`}
    ${conversation.compacting.value && html`<p class="mark"><span>${t("Condensing older messages…")}</span></p>`}
    ${approvals.value.filter((one) => one.request.sessionKey === conversation.fullKey).map((one) => html`<${Question} key=${one.id} approval=${one} />`)}
    <${Outgoing} conversation=${conversation} setText=${setText} input=${input} />`;
  return html`<${WindowList} rows=${rows} render=${render} label=${t("Conversation")} resetKey=${sessionKey}
    onTop=${() => conversation.loadOlder()} footer=${footer} />`;
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
  const waiting = conversation.waiting.value;
  return html`
    ${conversation.sending.value.map((one) => html`<div key=${one.runId}>
      <${MyMessage} row=${{ said: { text: one.text, images: one.attachments.length }, at: one.at }} pending=${one.again ? t("It is sent when the Gateway is back.") : one.failed || t("Sending…")} />
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
        <button class="icon-button" aria-label=${t("Edit waiting message")} onClick=${() => setEditing({ runId: one.runId, text: one.text })}><${Icon} name="edit" /></button>
        <button class="icon-button" aria-label=${t("Drop waiting message")} onClick=${() => drop(one)}><${Icon} name="trash" /></button>
      </li>`)}</ul>
    </section>`}`;
}
