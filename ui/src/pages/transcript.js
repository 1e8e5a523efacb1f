// Transcript: every entry of a session as a tree. What the conversation goes on from is on the left; other branches
// are indented below the entry they leave.
import { html, useEffect, useMemo, useRef, useState } from "../core/dom.js";
import { dateTime } from "../core/format.js";
import { call } from "../core/gateway.js";
import { address, go, route } from "../core/router.js";
import { settings } from "../core/settings.js";
import { t } from "../core/words.js";
import { Empty, Field, PageHead, copyText, pending, told, useCall } from "../parts/basics.js";
import { mainSession } from "../core/conversations.js";
import { SessionSelect } from "../parts/session-select.js";

const ROW_PX = 38;
const AROUND = 15;
const KINDS = { model_change: "model", thinking_level_change: "thinking level", custom: "mark", custom_message: "internal note", branch_summary: "summary of a branch", session_info: "session" };

// The entries in the order of the page, each with its depth and whether it is on the active branch.
export function laidOut(entries, leafId) {
  const byId = new Map(entries.map((one) => [one.id, one]));
  const children = new Map();
  const roots = [];
  for (const one of entries) {
    if (one.parentId && byId.has(one.parentId)) {
      if (!children.has(one.parentId)) children.set(one.parentId, []);
      children.get(one.parentId).push(one);
    } else roots.push(one);
  }
  const active = new Set();
  for (let one = byId.get(leafId); one && !active.has(one.id); one = byId.get(one.parentId)) active.add(one.id);
  const rows = [];
  // Side branches come before the entry that goes on, so that they stand at the entry which they leave.
  const stack = [...roots].reverse().map((entry) => ({ entry, depth: 0 }));
  while (stack.length) {
    const { entry, depth } = stack.pop();
    rows.push({ entry, depth, active: active.has(entry.id) });
    const below = children.get(entry.id) || [];
    const main = below.find((one) => active.has(one.id)) || below[below.length - 1];
    if (main) stack.push({ entry: main, depth });
    for (const one of [...below].reverse()) if (one !== main) stack.push({ entry: one, depth: depth + 1 });
  }
  return rows;
}

export function Transcript() {
  const { query } = route.value;
  const session = query.session || settings.value.sessionKey || mainSession();
  const answer = useCall("sessions.tree", { key: session });
  const { data } = answer;
  const rows = useMemo(() => (data ? laidOut(data.entries, data.leafId) : []), [data]);
  const [chosen, setChosen] = useState(null);
  useEffect(() => setChosen(null), [session]);
  const branches = rows.reduce((most, row) => most + (row.depth > 0 && row.entry.parentId ? 1 : 0), 0);
  return html`<div class="page full">
    <${PageHead} title=${t("Transcript")}>
      <${SessionSelect} value=${session} onChange=${(key) => go("transcript", { session: key })} />
      <button onClick=${answer.reload}>${t("Refresh")}</button>
    <//>
    ${answer.problem?.code === "INVALID_REQUEST" || rows.length === 0 && data ? html`<${Empty}>${t("Nothing is written yet.")}<//>` : !data ? pending(answer) : html`
      <p class="hint">${t("{n} entries, {m} of them on other branches", { n: rows.length, m: branches })}</p>
      <div class="split">
        <${Tree} session=${session} data=${data} rows=${rows} chosen=${chosen} choose=${setChosen} />
        ${chosen && html`<${Details} key=${chosen} session=${session} id=${chosen} leaf=${data.leafId} label=${data.entries.find((one) => one.id === chosen)?.label || ""} reload=${answer.reload} onClose=${() => setChosen(null)} />`}
      </div>`}
  </div>`;
}

function Tree({ session, data, rows, chosen, choose }) {
  const box = useRef(null);
  const [from, setFrom] = useState(0);
  const [height, setHeight] = useState(600);
  const known = useRef(new Map());
  const [, redraw] = useState(0);
  const first = Math.max(0, Math.floor(from / ROW_PX) - AROUND);
  const last = Math.min(rows.length, first + Math.ceil(height / ROW_PX) + 2 * AROUND);
  const shown = rows.slice(first, last);
  useEffect(() => {
    known.current = new Map();
    setHeight(box.current.clientHeight);
    box.current.scrollTop = box.current.scrollHeight;
  }, [data]);
  useEffect(() => {
    const missing = shown.map((row) => row.entry.id).filter((id) => !known.current.has(id));
    if (!missing.length) return undefined;
    const timer = setTimeout(() => {
      call("sessions.entries", { key: session, ids: missing.slice(0, 200) }).then(({ entries }) => {
        for (const one of entries) known.current.set(one.id, one);
        redraw((value) => value + 1);
      }, told);
    }, 60);
    return () => clearTimeout(timer);
  }, [first, last, rows]);
  const move = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = rows.findIndex((row) => row.entry.id === event.target.dataset.entry) + step;
    const next = rows[at];
    if (!next) return;
    const top = at * ROW_PX;
    if (top < box.current.scrollTop || top + ROW_PX > box.current.scrollTop + box.current.clientHeight) box.current.scrollTop = top - 100;
    choose(next.entry.id);
    requestAnimationFrame(() => box.current?.querySelector(`[data-entry="${CSS.escape(next.entry.id)}"]`)?.focus());
  };
  return html`<div class="tree" ref=${box} onScroll=${() => box.current && setFrom(box.current.scrollTop)} onKeyDown=${move} tabindex="0" role="group" aria-label=${t("Entries")}>
    <ul style=${{ height: `${rows.length * ROW_PX}px` }}>
      ${shown.map((row, index) => html`<${Entry} key=${row.entry.id} row=${row} top=${(first + index) * ROW_PX} facts=${known.current.get(row.entry.id)}
        leaf=${row.entry.id === data.leafId} chosen=${row.entry.id === chosen} choose=${choose} />`)}
    </ul></div>`;
}

function Entry({ row, top, facts, leaf, chosen, choose }) {
  const { entry, depth, active } = row;
  const kind = facts?.role || entry.type;
  return html`<li style=${{ top: `${top}px` }}>
    <button data-entry=${entry.id} aria-pressed=${chosen} class=${active ? "active" : ""} style=${{ paddingLeft: `${10 + Math.min(depth, 8) * 22}px` }} onClick=${() => choose(entry.id)}>
      ${depth > 0 && html`<span aria-hidden="true">⎇</span>`}<span class="chip">${t(KINDS[kind] || kind)}</span>
      ${entry.label && html`<span class="chip warn">${entry.label}</span>`}
      <span class=${facts?.failed ? "text failed" : "text"}>${facts?.text || ""}</span>${leaf && html`<span class="chip good">${t("newest")}</span>`}
    </button></li>`;
}

function Details({ session, id, leaf, label, reload, onClose }) {
  const answer = useCall("sessions.entries", { key: session, ids: [id], raw: true });
  const [name, setName] = useState(label);
  const raw = answer.data?.entries[0]?.raw;
  const pretty = useMemo(() => {
    try {
      return raw ? JSON.stringify(JSON.parse(raw), null, 2) : "";
    } catch {
      return raw;
    }
  }, [raw]);
  const act = async (work, news) => {
    try {
      await work();
      told(news);
      reload();
    } catch (error) {
      told(error);
    }
  };
  const branch = () => act(() => call("sessions.branch", { key: session, entryId: id, summarize: false }), t("The conversation goes on from here."));
  const save = (event) => {
    event.preventDefault();
    act(() => call("sessions.label", { key: session, entryId: id, label: name }), t("Saved"));
  };
  return html`<aside class="details card" aria-label=${t("Entry")}>
    <div class="buttons"><strong>${id}</strong><button class="quiet" onClick=${onClose}>${t("Close")}</button></div>
    <div class="buttons">
      <button disabled=${id === leaf} onClick=${branch}>${t("Continue from here")}</button>
      <a href=${address("chat", { session })}>${t("Chat")}</a>
      ${raw && html`<button class="quiet" onClick=${() => copyText(raw)}>${t("Copy")}</button>`}
    </div>
    <form class="buttons" onSubmit=${save}><${Field} label=${t("Label")}><input value=${name} maxlength="200" onInput=${(event) => setName(event.target.value)} /><//><button type="submit">${t("Save")}</button></form>
    ${pending(answer) || html`<pre tabindex="0" class="wrap" aria-label=${t("Stored line")}>${pretty.length > 60_000 ? `${pretty.slice(0, 60_000)}…` : pretty}</pre>`}
  </aside>`;
}
