// Channels: how each account is doing, and the people who ask to be let in.
import { html, useEffect, useState } from "../core/dom.js";
import { ago, dateTime } from "../core/format.js";
import { call, gateway } from "../core/gateway.js";
import { address } from "../core/router.js";
import { t } from "../core/words.js";
import { Empty, PageHead, pending, told, useCall } from "../parts/basics.js";

export function Channels() {
  const [probe, setProbe] = useState(false);
  const answer = useCall("channels.status", probe ? { probe: true } : {});
  useEffect(() => gateway.on((event) => event === "health" && answer.reload()), []);
  const { data } = answer;
  return html`<div class="page">
    <${PageHead} title=${t("Channels")}>
      <button onClick=${() => (setProbe(true), answer.reload())}>${t("Try the connections")}</button><button onClick=${answer.reload}>${t("Refresh")}</button>
    <//>
    <${Pairing} />
    ${!data ? pending(answer) : data.channelOrder.length ? data.channelOrder.map((name) => html`<${Channel} key=${name} name=${name} label=${data.channelLabels[name] || name} accounts=${data.channelAccounts[name] || []} />`)
      : html`<${Empty}>${t("No channel is configured.")} <a href=${address("settings", { find: "channels" })}>${t("Settings")}</a><//>`}
  </div>`;
}

function stateOf(account) {
  if (account.enabled === false) return ["", t("off")];
  if (account.lastError) return ["bad", t("has a problem")];
  if (account.connected || account.running) return ["good", t("connected")];
  return ["warn", t("not connected")];
}

function Channel({ label, name, accounts }) {
  return html`<section class="card"><h2>${label}</h2><ul class="plain-list">${accounts.map((one) => {
    const [tone, state] = stateOf(one);
    const probe = one.probe;
    return html`<li key=${one.accountId}><span><strong>${one.name || one.accountId || name}</strong>
        ${one.lastError && html`<br /><small class="bad">${one.lastError}</small>`}
        <br /><small>${one.lastInboundAt ? t("last message {ago}", { ago: ago(one.lastInboundAt) }) : t("no message yet")}${one.lastStartAt ? ` · ${t("since {time}", { time: dateTime(one.lastStartAt) })}` : ""}</small>
        ${probe && html`<br /><small>${probe.ok ? t("The connection works.") : probe.error || t("The connection does not work.")}</small>`}</span>
      <span class="chip ${tone}">${state}</span></li>`;
  })}</ul></section>`;
}

function Pairing() {
  const answer = useCall("pairing.list");
  const requests = answer.data?.requests || [];
  const [notify, setNotify] = useState(true);
  useEffect(() => {
    const timer = setInterval(answer.reload, 15_000);
    return () => clearInterval(timer);
  }, []);
  if (!requests.length) return null;
  const approve = (one) => call("pairing.approve", { code: one.code, channel: one.channel, notify }).then((done) => {
    told(done.notifyError ? new Error(done.notifyError) : t("Let in"));
    answer.reload();
  }, told);
  return html`<section class="card"><h2>${t("People who ask to be let in")}</h2>
    <ul class="plain-list">${requests.map((one) => html`<li key=${`${one.channel}${one.code}`}><span><strong>${one.meta?.name || one.id}</strong><br /><small>${one.channel} · ${one.id} · ${t("code {code}", { code: one.code })}</small></span>
      <button class="primary" onClick=${() => approve(one)}>${t("Approve")}</button></li>`)}</ul>
    <label class="check"><input type="checkbox" checked=${notify} onChange=${(event) => setNotify(event.target.checked)} /> ${t("Tell them on their channel")}</label>
  </section>`;
}
