// Sessions: find one by its name or by what was said, change its settings, start it over, condense it, delete it.
import { html, signal, useEffect, useState } from "../core/dom.js";
import { ago, count, dateTime, short } from "../core/format.js";
import { call } from "../core/gateway.js";
import { address, go, route } from "../core/router.js";
import { t } from "../core/words.js";
import { Dialog, Empty, Field, Notice, PageHead, pending, told, useCall } from "../parts/basics.js";
import { titleOf } from "../core/conversations.js";
import { Sure } from "../parts/sure.js";

const PAGE = 50;
const PIECE = 8 << 20; // Bytes of transcripts that one call of a search reads.
const ACTIVE = { "": "Any time", 60: "Last hour", 1440: "Last day", 10080: "Last week" };

export function Sessions() {
  const { query } = route.value;
  const [typed, setTyped] = useState(query.search || "");
  const set = (fields) => go("sessions", { ...query, offset: "", ...fields }, { replace: true });
  useEffect(() => {
    const timer = setTimeout(() => typed !== (query.search || "") && set({ search: typed }), 200);
    return () => clearTimeout(timer);
  }, [typed]);
  const said = query.in === "words";
  return html`<div class="page">
    <${PageHead} title=${t("Sessions")}><button disabled=${packing.value !== null} onClick=${pack}>${packing.value ? t("{n} of {m} packed", packing.value) : t("Pack old transcripts")}</button><//>
    <div class="filters" role="search">
      <input type="search" aria-label=${t("Search")} placeholder=${said ? t("Words that were said") : t("Name or key")} value=${typed} onInput=${(event) => setTyped(event.target.value)} />
      <select aria-label=${t("Search in")} value=${query.in || ""} onChange=${(event) => set({ in: event.target.value })}>
        <option value="">${t("Names")}</option><option value="words">${t("Words that were said")}</option>
      </select>
      ${!said && html`<select aria-label=${t("Active")} value=${query.active || ""} onChange=${(event) => set({ active: event.target.value })}>
        ${Object.entries(ACTIVE).map(([minutes, name]) => html`<option key=${minutes} value=${minutes}>${t(name)}</option>`)}
      </select>`}
    </div>
    ${said ? html`<${Found} words=${query.search || ""} />` : html`<${List} query=${query} set=${set} />`}
  </div>`;
}

const packing = signal(null); // How far the packing is, while it is under way.

// Packs piece by piece, so that one sees how far it is.
async function pack() {
  packing.value = "";
  let n = 0;
  try {
    for (let piece = 0; piece < 10_000; piece++) {
      const done = await call("sessions.archive", { most: 20 });
      n += done.compressed;
      if (!done.left || !done.compressed) break;
      packing.value = { n: count(n), m: count(n + done.left) };
    }
    told(t("{n} transcripts were packed.", { n: count(n) }));
  } catch (error) {
    told(error);
  } finally {
    packing.value = null;
  }
}

function List({ query, set }) {
  const offset = Number(query.offset) || 0;
  const params = { limit: PAGE, offset, includeDerivedTitles: true };
  if (query.search) params.search = query.search;
  if (query.active) params.activeMinutes = Number(query.active);
  const answer = useCall("sessions.list", params);
  const [open, setOpen] = useState(null);
  const { data } = answer;
  if (!data) return pending(answer);
  if (!data.sessions.length) return html`<${Empty}>${t("No session found.")}<//>`;
  return html`<div class="table-frame" tabindex="0"><table>
      <caption class="hidden">${t("Sessions")}</caption>
      <thead><tr><th>${t("Session")}</th><th>${t("Channel")}</th><th>${t("Model")}</th><th class="number">${t("Context")}</th><th>${t("Active")}</th><th><span class="hidden">${t("Actions")}</span></th></tr></thead>
      <tbody>${data.sessions.map((row) => html`<tr key=${row.key}>
        <td><a href=${address("chat", { session: row.key })}>${titleOf(row)}</a><br /><small>${row.key}</small></td>
        <td>${row.channel && row.channel !== "unknown" ? row.channel : "–"}</td><td class="short">${row.model || "–"}</td>
        <td class="number">${row.totalTokens ? `${short(row.totalTokens)} / ${short(row.contextTokens)}` : "–"}${row.compactionCount ? html`<br /><small>🧹 ${row.compactionCount}</small>` : ""}</td>
        <td class="when" title=${dateTime(row.updatedAt)}>${ago(row.updatedAt)}</td>
        <td><button onClick=${() => setOpen(row)} aria-label=${t("Settings of {name}", { name: row.key })}>${t("Settings")}</button></td>
      </tr>`)}</tbody>
    </table></div>
    <nav class="pager" aria-label=${t("Pages of the list")}>
      <button disabled=${offset === 0} onClick=${() => set({ offset: Math.max(0, offset - PAGE) || "" })}>${t("Back")}</button>
      <span>${t("{from}–{to} of {n}", { from: count(offset + 1), to: count(offset + data.sessions.length), n: count(data.totalCount) })}</span>
      <button disabled=${!data.hasMore} onClick=${() => set({ offset: offset + PAGE })}>${t("Next")}</button>
    </nav>
    ${open && html`<${SessionDialog} row=${open} onClose=${() => setOpen(null)} changed=${answer.reload} />`}`;
}

function Found({ words }) {
  const answer = useCall("sessions.search", { query: words, limit: 40, readBytes: PIECE }, { skip: !words.trim() });
  useEffect(() => {
    if (answer.data && !answer.data.complete) answer.reload(); // The next piece of what was never searched.
  }, [answer.data]);
  if (!words.trim()) return html`<${Empty}>${t("Write the words to find. Words in double quotes must follow each other.")}<//>`;
  const { data } = answer;
  if (!data) return pending(answer);
  const reading = !data.complete && html`<${Notice}>${t("Reading transcripts for the first time: {n} of {m}", { n: count(data.indexed.done), m: count(data.indexed.total) })}<//>`;
  if (!data.results.length) return reading || html`<${Empty}>${t("Nobody said that.")}<//>`;
  return html`${reading}<ul class="found">${data.results.map((one, index) => html`<li key=${index} class="card">
    ${one.sessionKey ? html`<a href=${address("chat", { session: one.sessionKey })}>${one.sessionKey}</a>` : html`<span>${one.sessionId}</span>`}
    <small> · ${one.role || ""} · ${dateTime(one.timestamp || one.at)}</small>
    <p class="plain">${one.snippet || one.text || ""}</p>
  </li>`)}</ul>`;
}

const LEVELS = {
  thinkingLevel: ["Thinking", ["off", "minimal", "low", "medium", "high", "xhigh"]],
  verboseLevel: ["Tool notices", ["off", "on", "full"]],
  reasoningLevel: ["Reasoning", ["off", "on", "stream"]],
  responseUsage: ["Usage footer", ["off", "tokens", "full"]],
  elevatedLevel: ["Outside the sandbox", ["off", "on", "ask", "full"]],
  sendPolicy: ["Sending", ["allow", "deny"]],
};

function SessionDialog({ row, onClose, changed }) {
  const [fields, setFields] = useState({ label: row.label || "", ...Object.fromEntries(Object.keys(LEVELS).map((name) => [name, row[name] || ""])) });
  const [problem, setProblem] = useState("");
  const [model, setModel] = useState("");
  const models = useCall("models.list");
  const usable = (models.data?.models || []).filter((one) => one.available);
  const set = (name) => (event) => setFields({ ...fields, [name]: event.target.value });
  const act = async (work, news) => {
    try {
      setProblem("");
      const answer = await work();
      if (news) told(news);
      changed();
      return answer;
    } catch (error) {
      setProblem(error.message);
      return null;
    }
  };
  const save = (event) => {
    event.preventDefault();
    const given = Object.entries(fields).filter(([name, value]) => value !== (row[name] || ""));
    const patch = Object.fromEntries(given.map(([name, value]) => [name, value || null]));
    if (model) patch.model = model === "default" ? null : model;
    act(() => call("sessions.patch", { key: row.key, ...patch }), t("Saved")).then((answer) => answer && onClose());
  };
  return html`<${Dialog} title=${row.key} onClose=${onClose}>
    ${problem && html`<${Notice} kind="error">${problem}<//>`}
    <form onSubmit=${save}>
      <${Field} label=${t("Label")}><input value=${fields.label} maxlength="64" onInput=${set("label")} /><//>
      <${Field} label=${t("Model")}><select value=${model} onChange=${(event) => setModel(event.target.value)}>
        <option value="">${row.model || t("Default")}</option><option value="default">${t("Default")}</option>
        ${usable.map((one) => html`<option key=${`${one.provider}/${one.id}`} value=${`${one.provider}/${one.id}`}>${one.provider}/${one.id}</option>`)}
      </select><//>
      <div class="grid">${Object.entries(LEVELS).map(([name, [label, values]]) => html`<${Field} key=${name} label=${t(label)}>
        <select value=${fields[name]} onChange=${set(name)}><option value="">${t("Default")}</option>${values.map((one) => html`<option key=${one}>${one}</option>`)}</select>
      <//>`)}</div>
      <div class="buttons"><button class="primary" type="submit">${t("Save")}</button>
        <a href=${address("transcript", { session: row.key })}>${t("Transcript")}</a><a href=${address("context", { session: row.key })}>${t("Context")}</a></div>
    </form>
    <${Condense} row=${row} act=${act} />
    <${Earlier} row=${row} act=${act} />
    <section class="section"><h3>${t("Start over or delete")}</h3>
      <div class="buttons">
        <${Sure} onSure=${() => act(() => call("sessions.reset", { key: row.key }), t("A new session has begun; the old transcript is kept."))}>${t("Start over")}<//>
        <${Sure} danger onSure=${() => act(() => call("sessions.delete", { key: row.key }), t("Deleted")).then((answer) => answer && onClose())}>${t("Delete")}<//>
      </div>
    </section>
  <//>`;
}

function Condense({ row, act }) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const compaction = (action) => async () => {
    setBusy(true);
    const answer = await act(() => call("sessions.compaction", { key: row.key, action }));
    setBusy(false);
    if (!answer) return;
    if (action === "preview") setText(answer.text);
    else if (action === "undo") told(t("Undone; the next prompt has {n} tokens.", { n: count(answer.tokensAfter) }));
    else if (answer.status === "compacted") told(t("Condensed from {a} to {b} tokens.", { a: count(answer.tokensBefore), b: count(answer.tokensAfter) }));
    else told(new Error(answer.reason || answer.status));
  };
  return html`<section class="section"><h3>${t("Condense the older part")}</h3>
    <div class="buttons" aria-busy=${busy}>
      <button type="button" disabled=${busy} onClick=${compaction("preview")}>${t("Preview")}</button>
      <button type="button" disabled=${busy} onClick=${compaction("compact")}>${t("Compact")}</button>
      <button type="button" disabled=${busy} onClick=${compaction("undo")}>${t("Undo")}</button>
      ${busy && html`<span class="hint">${t("Working…")}</span>`}
    </div>
    ${text && html`<pre tabindex="0" class="wrap" aria-label=${t("Preview")}>${text}</pre>`}
  </section>`;
}

function Earlier({ row, act }) {
  const answer = useCall("sessions.archived", { key: row.key });
  const earlier = answer.data?.sessions || [];
  if (!earlier.length) return null;
  const resume = (one) => act(() => call("sessions.resume", { key: row.key, sessionId: one.sessionId }), t("Resumed")).then(() => answer.reload());
  return html`<section class="section"><h3>${t("Earlier sessions of this key")}</h3>
    <ul class="plain-list">${earlier.slice(0, 20).map((one) => html`<li key=${one.sessionId}>
      <span>${one.title || one.sessionId}<br /><small>${dateTime(one.endedAt)} ${one.reason || ""}</small></span>
      <button type="button" onClick=${() => resume(one)}>${t("Resume")}</button>
    </li>`)}</ul></section>`;
}
