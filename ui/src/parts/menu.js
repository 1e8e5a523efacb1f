// A button that opens a small panel beside it: what can be done with a thing, or what can be chosen.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/dom.js";

const GAP = 6;

export function Popover({ label, trigger, className = "icon-button", panelClass = "", children, disabled = false, title }) {
  const [open, setOpen] = useState(false);
  const button = useRef(null);
  const panel = useRef(null);
  const close = (refocus = true) => {
    setOpen(false);
    if (refocus) button.current?.focus();
  };
  useLayoutEffect(() => {
    if (!open) return;
    const at = button.current.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = panel.current;
    const below = at.bottom + GAP + height <= innerHeight || at.top < height + GAP;
    panel.current.style.top = `${Math.max(8, below ? Math.min(at.bottom + GAP, innerHeight - height - 8) : at.top - GAP - height)}px`;
    panel.current.style.left = `${Math.max(8, Math.min(at.left, innerWidth - width - 8))}px`;
    (panel.current.querySelector("[autofocus], [aria-checked=true], [aria-pressed=true]") || panel.current.querySelector("input, button, a"))?.focus({ preventScroll: true });
  }, [open]);
  useEffect(() => {
    if (!open) return undefined;
    const outside = (event) => {
      if (!panel.current?.contains(event.target) && !button.current?.contains(event.target)) close(false);
    };
    addEventListener("pointerdown", outside, true);
    return () => removeEventListener("pointerdown", outside, true);
  }, [open]);
  const key = (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      close();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const items = [...panel.current.querySelectorAll("button:not(:disabled), a[href]")];
      const next = items.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
      if (!items.length) return;
      event.preventDefault();
      items[(next + items.length) % items.length].focus();
    }
  };
  return html`<button type="button" ref=${button} class=${className} aria-label=${label} title=${title} aria-haspopup="dialog" aria-expanded=${open} disabled=${disabled}
      onClick=${(event) => (event.preventDefault(), event.stopPropagation(), setOpen(!open))}>${trigger}</button>
    ${open && html`<div ref=${panel} class="popover ${panelClass}" role="dialog" aria-label=${label} onKeyDown=${key}>${typeof children === "function" ? children(close) : children}</div>`}`;
}
