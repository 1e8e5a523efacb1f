// Messages: the life of every accepted message, and why it ended as it did.
import { html, useEffect, useState } from "../core/dom.js";
import { clipped, dateTime, duration } from "../core/format.js";
import { gateway } from "../core/gateway.js";
import { Markdown } from "../core/markdown.js";
import { address, go, route } from "../core/router.js";
import { t } from "../core/words.js";
import { Dialog, Empty, PageHead, pending, useCall } from "../parts/basics.js";
import { SessionSelect } from "../parts/session-select.js";

const STATES = ["accepted", "queued", "running", "answered", "silent", "failed", "superseded", "expired"];
const TONE = { answered: "good", silent: "good", failed: "bad", expired: "bad", running: "warn", queued: "warn", accepted: "warn", held: "warn" };

export function Messages() {
  const { query } = route.value;
  const set = (fields) => go("messages", { ...query, ...fields }, { replace: true });
  const params = { limit: 100 };
  if (query.session) params.sessionKey = query.session;
  if (query.state) params.state = query.state;
  const answer = useCall("messages.list", params);
  useEffect(() => {
    let timer = 0;
    const off = gateway.on((event, payload) => {
      if (event !== "chat" || payload.state === "delta") return;
      clearTimeout(timer);
      timer = setTimeout(answer.reload, 300);
    });
    return () => (off(), clearTimeout(timer));
  }, []);
  const rows = answer.data?.messages;
  return html`<div class="page">
    <${PageHead} title=${t("Messages")}><button onClick=${answer.reload}>${t("Refresh")}</button><//>
    <div class="filters">
      <${SessionSelect} value=${query.session || t("All sessions")} onChange=${(session) => set({ session })} />
      ${query.session && html`<button class="quiet" onClick=${() => set({ session: "" })}>${t("All sessions")}</button>`}
      <select aria-label=${t("State")} value=${query.state || ""} onChange=${(event) => set({ state: event.target.value })}>
        <option value="">${t("Any state")}</option>${STATES.map((one) => html`<option key=${one} value=${one}>${t(one)}</option>`)}
      </select>
      <${Ask} />
    </div>
    ${!rows ? pending(answer) : rows.length ? html`<${Table} rows=${rows} />` : html`<${Empty}>${t("No message is on record.")}<//>`}
    ${query.why && html`<${Why} reference=${query.why} onClose=${() => set({ why: "" })} />`}
  </div>`;
}

function Ask() {
  const { query } = route.value;
  const [typed, setTyped] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (typed.trim()) go("messages", { ...query, why: typed.trim() });
  };
  return html`<form class="filters" onSubmit=${submit}>
    <input aria-label=${t("Number, run id or message id")} placeholder=${t("Number, run id or message id")} value=${typed} onInput=${(event) => setTyped(event.target.value)} />
    <button type="submit">${t("Why?")}</button></form>`;
}

function Table({ rows }) {
  const { query } = route.value;
  return html`<div class="table-frame" tabindex="0"><table>
    <caption class="hidden">${t("Messages")}</caption>
    <thead><tr><th class="number">#</th><th>${t("State")}</th><th>${t("Message")}</th><th>${t("Session")}</th><th>${t("Accepted")}</th><th class="number">${t("Took")}</th></tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${row.id ?? `held-${index}`}>
      <td class="number">${row.id ?? "–"}</td>
      <td><span class="chip ${TONE[row.state] || ""}">${t(row.state)}</span></td>
      <td>${row.runId || row.messageIds ? html`<a href=${address("messages", { ...query, why: row.runId || row.messageIds[0] })}>${clipped(row.text || "…", 120)}</a>` : clipped(row.text || "…", 120)}
        ${row.reason && html`<br /><small>${t(row.reason)}</small>`}</td>
      <td><small>${row.sessionKey || row.channel}</small></td>
      <td class="when"><small>${dateTime(row.acceptedAt)}</small></td>
      <td class="number">${row.endedAt ? duration(row.endedAt - row.acceptedAt) : ""}</td>
    </tr>`)}</tbody></table></div>`;
}

function Why({ reference, onClose }) {
  const answer = useCall("messages.why", { ref: reference });
  const { data } = answer;
  return html`<${Dialog} wide title=${t("Why?")} onClose=${onClose}>
    ${!data ? pending(answer) : html`
      <ol class="story">${data.story.map((line, index) => html`<li key=${index}>${line}</li>`)}</ol>
      ${data.answeredBy && html`<section class="section"><h3>${t("Answered by another run")}</h3>
        <ol class="story">${data.answeredBy.story.map((line, index) => html`<li key=${index}>${line}</li>`)}</ol></section>`}
      ${data.message && html`<${Facts} message=${data.message} />`}`}
  <//>`;
}

function Facts({ message }) {
  return html`
    ${message.text && html`<section class="section"><h3>${t("Message")}</h3><p class="plain">${message.text}</p></section>`}
    ${message.reply && html`<section class="section"><h3>${t("Reply")}</h3><${Markdown} text=${message.reply} /></section>`}
    ${message.changes?.length > 0 && html`<section class="section"><h3>${t("States")}</h3><ol class="plain-list">${message.changes.map((one, index) => html`<li key=${index}><span>${t(one.state)} ${one.reason && html`<small>${t(one.reason)}</small>`}</span><small>${dateTime(one.at)}</small></li>`)}</ol></section>`}
    ${message.toolCalls?.length > 0 && html`<section class="section"><h3>${t("Tools")}</h3><ul class="plain-list">${message.toolCalls.map((one) => html`<li key=${one.id}><span>${one.name} <code>${clipped(one.arguments, 160)}</code></span><span class="chip ${one.ok ? "good" : one.ok === false ? "bad" : "warn"}">${one.ok ? t("done") : one.ok === false ? t("failed") : t("running")}</span></li>`)}</ul></section>`}
    ${message.deliveries?.length > 0 && html`<section class="section"><h3>${t("Deliveries")}</h3><ul class="plain-list">${message.deliveries.map((one) => html`<li key=${one.part}><span>${one.channel} #${one.part} ${one.error && html`<small>${one.error}</small>`}</span><span class="chip">${one.state}</span></li>`)}</ul></section>`}
    <p class="buttons"><a href=${address("context", { session: message.sessionKey, run: message.runId })}>${t("What the model saw")}</a>
      <a href=${address("chat", { session: message.sessionKey })}>${t("Chat")}</a></p>`;
}
