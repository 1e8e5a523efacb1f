// A button that asks once more before it acts.
import { html, useState } from "../core/dom.js";
import { t } from "../core/words.js";

export function Sure({ children, onSure, danger = false }) {
  const [asked, setAsked] = useState(false);
  const style = danger ? "danger" : "";
  if (!asked) return html`<button type="button" class=${style} onClick=${() => setAsked(true)}>${children}</button>`;
  return html`<span class="buttons"><button type="button" class=${style} onClick=${() => (setAsked(false), onSure())}>${t("Really?")} ${children}</button>
    <button type="button" class="quiet" onClick=${() => setAsked(false)}>${t("Cancel")}</button></span>`;
}
