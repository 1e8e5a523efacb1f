// Chooses a session: a button that opens a search over all sessions, however many there are.
import { html, useEffect, useRef, useState } from "../core/dom.js";
import { ago } from "../core/format.js";
import { connection } from "../core/gateway.js";
import { t } from "../core/words.js";
import { Dialog, Empty, Icon, useCall } from "./basics.js";

const MOST = 50;

export function mainSession() {
  return connection.value.hello?.snapshot.sessionDefaults?.mainSessionKey || "agent:main:main";
}

export function sessionName(row) {
  return row.label || row.displayName || row.key;
}

export function SessionSelect({ value, onChange, create = false }) {
  const [open, setOpen] = useState(false);
  useEffect(() => {
    const key = (event) => {
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      setOpen(true);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, []);
  return html`<button class="session-select" aria-haspopup="dialog" title=${t("Switch session (Ctrl+K)")} onClick=${() => setOpen(true)}>
      <span class="hidden">${t("Session")}: </span><span class="name">${value}</span><${Icon} name="down" />
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
  const { data } = useCall("sessions.list", { limit: MOST, offset: 0, ...(search ? { search } : {}) });
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
        <strong>${sessionName(row)}</strong><small>${row.key} · ${ago(row.updatedAt)}</small></button></li>`)}
      ${named && html`<li><button onClick=${() => onChange(search)}><strong>${t("New session: {name}", { name: search })}</strong></button></li>`}
    </ul>
    ${data && !rows.length && !named && html`<${Empty}>${t("No session found.")}<//>`}
    ${data?.hasMore && html`<p class="hint">${t("{n} sessions in all; search to find others.", { n: data.totalCount })}</p>`}
  <//>`;
}
