// Small parts that every page is made of.
import { html, signal, useEffect, useRef, useState } from "../core/dom.js";
import { call, connection } from "../core/gateway.js";
import { t } from "../core/words.js";

const ICONS = {
  chat: "M4 5h16v11H9l-5 4z",
  sessions: "M4 6h16M4 12h16M4 18h10",
  transcript: "M6 4v16M6 9h7a3 3 0 0 1 3 3v2M14 12l2 2 2-2",
  context: "M4 4h16v16H4zM4 10h16M10 10v10",
  messages: "M4 6h16v12H4zM4 7l8 6 8-6",
  agents: "M12 3v3M7 8h10a2 2 0 0 1 2 2v7a2 2 0 0 1-2 2H7a2 2 0 0 1-2-2v-7a2 2 0 0 1 2-2zM9.5 13h.01M14.5 13h.01",
  channels: "M5 12a7 7 0 0 1 14 0M8.5 12a3.5 3.5 0 0 1 7 0M12 12v8",
  approvals: "M12 3l7 3v5c0 5-3 8-7 10-4-2-7-5-7-10V6zM9 12l2 2 4-4",
  usage: "M5 20V10M12 20V4M19 20v-7",
  config: "M4 7h10M18 7h2M4 17h2M10 17h10M14 4.5v5M8 14.5v5",
  logs: "M5 4h14v16H5zM8 8h8M8 12h8M8 16h5",
  debug: "M8 9l-4 3 4 3M16 9l4 3-4 3M13 6l-2 12",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6L6 18",
  attach: "M8 12.5l5.5-5.5a3 3 0 0 1 4.2 4.2l-7.5 7.5a5 5 0 0 1-7-7L10 5",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  down: "M6 9l6 6 6-6",
  edit: "M4 20h4L19 9l-4-4L4 16z",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  plus: "M12 5v14M5 12h14",
  check: "M5 13l4 4L19 7",
  tool: "M14 6a4 4 0 0 0-5 5l-5 5 4 4 5-5a4 4 0 0 0 5-5l-2.5 2.5L13 10z",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${ICONS[name] || ICONS.menu} /></svg>`;
}

export function Notice({ kind = "info", children }) {
  return html`<p class="notice ${kind}" role=${kind === "error" ? "alert" : "status"}>${children}</p>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

// A page's heading, with what belongs beside it.
export function PageHead({ title, children }) {
  return html`<header class="page-head"><h1>${title}</h1><div class="page-tools">${children}</div></header>`;
}

export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
}

// A modal dialog. Escape and the close button end it; the browser keeps the focus inside.
export function Dialog({ title, onClose, children, wide = false }) {
  const ref = useRef(null);
  const gone = useRef(false);
  useEffect(() => {
    const dialog = ref.current;
    if (!dialog.open) dialog.showModal();
    return () => ((gone.current = true), dialog.open && dialog.close());
  }, []);
  // The browser tells the end of a dialog a moment later, also of one that is gone. What was chosen since then must stay.
  const ended = () => gone.current || onClose();
  const cancelled = (event) => (event.preventDefault(), onClose());
  return html`<dialog ref=${ref} class=${wide ? "wide" : ""} aria-label=${title} onClose=${ended} onCancel=${cancelled}>
    <header><h2>${title}</h2><button class="icon-button" aria-label=${t("Close")} onClick=${onClose}><${Icon} name="close" /></button></header>
    ${children}
  </dialog>`;
}

// Short news at the edge of the page, gone by themselves: told("Saved"), told(error).
const toasts = signal([]);
let toastNumber = 0;

export function told(news) {
  const failed = news instanceof Error;
  const toast = { id: ++toastNumber, text: failed ? news.message : String(news), failed };
  toasts.value = [...toasts.value.slice(-3), toast];
  setTimeout(() => (toasts.value = toasts.value.filter((one) => one !== toast)), failed ? 8000 : 4000);
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map((toast) => html`<p key=${toast.id} class=${toast.failed ? "failed" : ""}>${toast.text}</p>`)}
  </div>`;
}

// Calls a method when the page opens, when `params` change, and after every reconnect.
// Returns { data, problem, loading, reload }. While it loads again, the old data stay.
export function useCall(method, params = {}, { skip = false } = {}) {
  const [state, setState] = useState({ data: null, problem: null, loading: !skip });
  const [turn, setTurn] = useState(0);
  const key = JSON.stringify(params);
  const open = connection.value.phase === "open";
  useEffect(() => {
    if (skip || !open) return undefined;
    let current = true;
    setState((old) => ({ ...old, loading: true }));
    call(method, params).then(
      (data) => current && setState({ data, problem: null, loading: false }),
      (problem) => current && setState((old) => ({ ...old, problem, loading: false })),
    );
    return () => (current = false);
  }, [method, key, turn, open, skip]);
  return { ...state, reload: () => setTurn((value) => value + 1) };
}

// What a page shows while its first call is under way or has failed, or null.
export function pending({ data, problem, loading }) {
  if (problem && problem.code !== "DISCONNECTED") return html`<${Notice} kind="error">${problem.message}<//>`;
  return data || !loading ? null : html`<${Empty}>${t("Loading…")}<//>`;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    told(t("Copied"));
  } catch (error) {
    told(error);
  }
}
