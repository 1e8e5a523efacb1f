// Chooses a session: a button that opens a search over all sessions, however many there are.
import { html, useEffect, useRef, useState } from "../core/dom.js";
import { ago } from "../core/format.js";
import { rowOf, titleOf } from "../core/conversations.js";
import { t } from "../core/words.js";
import { Dialog, Empty, Icon, useCall } from "./basics.js";

const MOST = 50;

export function SessionSelect({ value, onChange, create = false }) {
  const [open, setOpen] = useState(false);
  return html`<button class="session-select" aria-haspopup="dialog" title=${value} onClick=${() => setOpen(true)}>
      <span class="hidden">${t("Session")}: </span><span class="name">${titleOf(rowOf(value) || { key: value })}</span><${Icon} name="down" />
    </button>
    ${open && html`<${SessionDialog} value=${value} create=${create} onClose=${() => setOpen(false)}
      onChange=${(key) => (setOpen(false), onChange(key))} />`}`;
}

function SessionDialog({ value, onChange, onClose, create }) {
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  const input = useRef(null);
  useEffect(() => {
    const timer = setTimeout(() => setSearch(typed.trim()), 150);
    return () => clearTimeout(timer);
  }, [typed]);
  useEffect(() => input.current.focus(), []);
  const { data } = useCall("sessions.list", { limit: MOST, offset: 0, includeDerivedTitles: true, ...(search ? { search } : {}) });
  const rows = data?.sessions || [];
  const submit = (event) => {
    event.preventDefault();
    if (rows.length && search) onChange(rows[0].key);
  };
  const named = create && search && /^(?!agent:|subagent:)[\w.:-]+$/i.test(search) && !rows.some((row) => row.key.endsWith(`:${search}`));
  return html`<${Dialog} title=${t("Sessions")} onClose=${onClose}>
    <form onSubmit=${submit}><input ref=${input} type="search" aria-label=${t("Search")} placeholder=${t("Search")} value=${typed} onInput=${(event) => setTyped(event.target.value)} /></form>
    <ul class="choices">
      ${rows.map((row) => html`<li key=${row.key}><button aria-current=${row.key === value ? "true" : undefined} onClick=${() => onChange(row.key)}>
        <strong>${titleOf(row)}</strong><small>${row.key} · ${ago(row.updatedAt)}</small></button></li>`)}
      ${named && html`<li><button onClick=${() => onChange(search)}><strong>${t("New session: {name}", { name: search })}</strong></button></li>`}
    </ul>
    ${data && !rows.length && !named && html`<${Empty}>${t("No session found.")}<//>`}
    ${data?.hasMore && html`<p class="hint">${t("{n} sessions in all; search to find others.", { n: data.totalCount })}</p>`}
  <//>`;
}
