// Small parts that every page is made of.
import { html, signal, useEffect, useRef, useState } from "../core/dom.js";
import { call, connection } from "../core/gateway.js";
import { t } from "../core/words.js";
import { Icon } from "./icons.js";

export { Icon };

export function Notice({ kind = "info", children }) {
  return html`<p class="notice ${kind}" role=${kind === "error" ? "alert" : "status"}>${children}</p>`;
}

// What a page shows where there is nothing yet, with the way to begin.
export function Empty({ icon, children }) {
  return html`<div class="empty">${icon && html`<${Icon} name=${icon} />`}<p>${children}</p></div>`;
}

// A page's heading, with what belongs beside it.
export function PageHead({ title, children }) {
  return html`<header class="page-head"><h1>${title}</h1><div class="page-tools">${children}</div></header>`;
}

export function Field({ label, hint, children }) {
  return html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;
}

// A modal dialog. Escape and the close button end it; the browser keeps the focus inside.
export function Dialog({ title, onClose, children, wide = false, className = "" }) {
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
  return html`<dialog ref=${ref} class=${`${wide ? "wide" : ""} ${className}`} aria-label=${title} onClose=${ended} onCancel=${cancelled}>
    <header><h2>${title}</h2><button class="icon-button" aria-label=${t("Close")} onClick=${onClose}><${Icon} name="close" /></button></header>
    ${children}
  </dialog>`;
}

// Short news at the edge of the page, gone by themselves: told("Saved"), told(error), told("Deleted", { label, run }).
const toasts = signal([]);
let toastNumber = 0;

export function told(news, action = null, ms = action ? 7000 : 4000) {
  const failed = news instanceof Error;
  const toast = { id: ++toastNumber, text: failed ? news.message : String(news), failed, action };
  toasts.value = [...toasts.value.slice(-3), toast];
  setTimeout(() => dismiss(toast), failed ? 8000 : ms);
}

function dismiss(toast) {
  toasts.value = toasts.value.filter((one) => one !== toast);
}

export function Toasts() {
  return html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map((toast) => html`<p key=${toast.id} class=${toast.failed ? "failed" : ""}><span>${toast.text}</span>${toast.action && html`<button onClick=${() => (dismiss(toast), toast.action.run())}>${toast.action.label}</button>`}</p>`)}
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
