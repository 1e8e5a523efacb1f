// Debug: call any method, and see the events as they come.
import { html, useEffect, useState } from "../core/dom.js";
import { call, connection, gateway } from "../core/gateway.js";
import { duration, time } from "../core/format.js";
import { t } from "../core/words.js";
import { Field, Notice, PageHead, copyText } from "../parts/basics.js";

const MOST_EVENTS = 250;
const LONGEST = 200_000;

export function Debug() {
  const hello = connection.value.hello;
  const methods = hello.features.methods;
  const [method, setMethod] = useState("status");
  const [params, setParams] = useState("{}");
  const [result, setResult] = useState(null);
  const run = async (event) => {
    event.preventDefault();
    const began = performance.now();
    try {
      const answer = await call(method, JSON.parse(params || "{}"));
      setResult({ ok: true, text: JSON.stringify(answer, null, 2), took: performance.now() - began });
    } catch (error) {
      setResult({ ok: false, text: error.code ? `${error.code}: ${error.message}${error.details ? `\n${JSON.stringify(error.details, null, 2)}` : ""}` : error.message, took: performance.now() - began });
    }
  };
  return html`<div class="page">
    <${PageHead} title=${t("Debug")}><span class="chip">${hello.server.version}</span><span class="chip">${hello.server.host}</span><//>
    <section class="card"><h2>${t("Call a method")}</h2>
      <form onSubmit=${run}>
        <${Field} label=${t("Method")}><input list="methods" value=${method} onInput=${(event) => setMethod(event.target.value)} spellcheck="false" /><//>
        <datalist id="methods">${[...methods].sort().map((one) => html`<option key=${one} value=${one} />`)}</datalist>
        <${Field} label=${t("Parameters (JSON)")}><textarea class="code" rows="5" spellcheck="false" value=${params} onInput=${(event) => setParams(event.target.value)}></textarea><//>
        <button class="primary" type="submit">${t("Call")}</button>
      </form>
      ${result && html`<div class="section"><div class="buttons spread"><span class="chip ${result.ok ? "good" : "bad"}">${result.ok ? t("done") : t("failed")}</span><span>${duration(result.took)}</span><button class="quiet" onClick=${() => copyText(result.text)}>${t("Copy")}</button></div>
        ${result.ok ? html`<pre tabindex="0" aria-label=${t("Answer")}>${result.text.slice(0, LONGEST)}</pre>` : html`<${Notice} kind="error">${result.text}<//>`}</div>`}
    </section>
    <${Events} />
  </div>`;
}

function Events() {
  const [events, setEvents] = useState([]);
  useEffect(() => {
    let number = 0;
    return gateway.on((name, payload, seq) => setEvents((old) => [{ id: ++number, at: Date.now(), name, seq, text: JSON.stringify(payload) }, ...old].slice(0, MOST_EVENTS)));
  }, []);
  return html`<section class="card"><h2>${t("Events")}</h2>
    <div class="log-lines short" tabindex="0" role="log" aria-label=${t("Events")} aria-live="off">
      ${events.length ? events.map((one) => html`<div key=${one.id}><span>${time(one.at)}</span> <b>${one.name}</b> <i>${one.seq ?? ""}</i> <small>${one.text.slice(0, 400)}</small></div>`) : html`<p class="hint">${t("None since this page was opened.")}</p>`}
    </div></section>`;
}
