// One question: may this command run?
import { html } from "../core/dom.js";
import { decide } from "../core/approvals.js";
import { time } from "../core/format.js";
import { t } from "../core/words.js";
import { told } from "./basics.js";

export function Question({ approval }) {
  const { request } = approval;
  const answer = (decision) => async () => {
    try {
      const { allowedOnce } = await decide(approval.id, decision);
      if (allowedOnce) told(t("Allowed once: {why}", { why: allowedOnce }));
    } catch (error) {
      told(error);
    }
  };
  return html`<section class="question card" role="alertdialog" aria-label=${t("May this command run?")}>
    <h2>${t("May this command run?")}</h2>
    <pre class="wrap" tabindex="0" aria-label=${t("Command")}>${request.command}</pre>
    ${request.cwd && html`<p class="hint">${t("In {folder}", { folder: request.cwd })}</p>`}
    ${request.env && html`<pre class="wrap" tabindex="0" aria-label=${t("Variables")}>${Object.entries(request.env).map(([name, value]) => `${name}=${value}`).join("\n")}</pre>`}
    ${request.onceOnly && html`<p class="hint">${t("It cannot be allowed for good: {why}", { why: request.onceOnly })}</p>`}
    <div class="buttons">
      <button class="primary" onClick=${answer("allow-once")}>${t("Allow once")}</button>
      ${!request.onceOnly && html`<button onClick=${answer("allow-always")}>${t("Always allow")}</button>`}
      <button class="danger" onClick=${answer("deny")}>${t("Deny")}</button>
      <small>${t("until {time}", { time: time(approval.expiresAtMs) })} ${request.sessionKey ? `· ${request.sessionKey}` : ""}</small>
    </div>
  </section>`;
}
