// Approvals: commands that wait for a yes, the rules that answer by themselves, and devices that ask to be let in.
import { html, useEffect, useState } from "../core/dom.js";
import { approvals } from "../core/approvals.js";
import { ago } from "../core/format.js";
import { call, gateway } from "../core/gateway.js";
import { t } from "../core/words.js";
import { Empty, Notice, PageHead, pending, told, useCall } from "../parts/basics.js";
import { Question } from "../parts/question.js";
import { Sure } from "../parts/sure.js";

export function Approvals() {
  return html`<div class="page">
    <${PageHead} title=${t("Approvals")} />
    ${approvals.value.length ? approvals.value.map((one) => html`<${Question} key=${one.id} approval=${one} />`) : html`<${Empty}>${t("No command waits for an answer.")}<//>`}
    <${Devices} />
    <${Rules} />
  </div>`;
}

function Devices() {
  const answer = useCall("device.pair.list");
  useEffect(() => gateway.on((event) => event.startsWith("device.pair.") && answer.reload()), []);
  const { data } = answer;
  const act = (method, params, news) => () => call(method, params).then(() => (told(news), answer.reload()), told);
  return html`<section class="card"><h2>${t("Devices")}</h2>
    ${!data ? pending(answer) : html`<ul class="plain-list">
      ${data.pending.map((one) => html`<li key=${one.requestId}><span><strong>${one.displayName || one.clientId}</strong> <span class="chip warn">${t("asks to be let in")}</span><br /><small>${one.platform || ""} · ${one.remoteIp || ""} · ${ago(one.ts)}</small></span>
        <span class="buttons"><button class="primary" onClick=${act("device.pair.approve", { requestId: one.requestId }, t("Approved"))}>${t("Approve")}</button>
        <button class="danger" onClick=${act("device.pair.reject", { requestId: one.requestId }, t("Rejected"))}>${t("Reject")}</button></span></li>`)}
      ${data.paired.map((one) => html`<li key=${one.deviceId}><span><strong>${one.displayName || one.clientId || t("Device")}</strong><br /><small>${one.platform || ""} · ${(one.scopes || []).join(", ")} · ${ago(one.approvedAtMs)}</small></span>
        <${Sure} danger onSure=${act("device.pair.remove", { deviceId: one.deviceId }, t("Removed"))}>${t("Remove")}<//></li>`)}
    </ul>${!data.pending.length && !data.paired.length && html`<${Empty}>${t("No device is paired.")}<//>`}`}
  </section>`;
}

function Rules() {
  const answer = useCall("exec.approvals.get");
  const [text, setText] = useState(null);
  const [problem, setProblem] = useState("");
  const { data } = answer;
  const shown = text ?? (data ? JSON.stringify(data.file ?? {}, null, 2) : "");
  const save = async () => {
    try {
      setProblem("");
      await call("exec.approvals.set", { file: JSON.parse(shown), ...(data.hash ? { baseHash: data.hash } : {}) });
      setText(null);
      answer.reload();
      told(t("Saved"));
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<details class="card"><summary><h2>${t("Rules for commands")}</h2></summary>
    ${!data ? pending(answer) : html`
      <p class="hint">${data.path}</p>${problem && html`<${Notice} kind="error">${problem}<//>`}
      <textarea class="code" rows="14" spellcheck="false" aria-label=${t("Rules for commands")} value=${shown} onInput=${(event) => setText(event.target.value)}></textarea>
      <div class="buttons"><button class="primary" disabled=${text === null} onClick=${save}>${t("Save")}</button>
        ${text !== null && html`<button onClick=${() => setText(null)}>${t("Cancel")}</button>`}</div>`}
  </details>`;
}
