// Context: what the model was sent in a run: how the window is filled, what changed, and when a phrase was in view.
import { html, useState } from "../core/dom.js";
import { clipped, count, dateTime, short } from "../core/format.js";
import { address, go, route } from "../core/router.js";
import { settings } from "../core/settings.js";
import { t } from "../core/words.js";
import { Empty, PageHead, pending, useCall } from "../parts/basics.js";
import { mainSession } from "../core/conversations.js";
import { SessionSelect } from "../parts/session-select.js";

const FILES = /^(\/|~)|\.(md|txt|json)$/i;
const TONES = ["prompt", "files", "skills", "tools", "facts", "user", "assistant", "results"];
const NAMES = { prompt: "System prompt", files: "Workspace files", skills: "Skills", tools: "Tools", facts: "Facts of the turn", user: "What people said", assistant: "What the agent said", results: "Tool results" };

// The characters of each kind, and the single pieces, largest first.
export function weighed(view) {
  const pieces = [];
  const add = (kind, name, chars, more = {}) => chars > 0 && pieces.push({ kind, name, chars, ...more });
  for (const part of view.systemPrompt.parts) {
    const kind = FILES.test(part.title) ? "files" : /skill/i.test(part.title) ? "skills" : "prompt";
    add(kind, part.title, part.chars);
  }
  add("tools", view.tools.names.join(", "), view.tools.chars);
  add("facts", t("Facts of the turn"), view.turnFacts.chars);
  for (const one of view.messages) {
    const kind = one.role === "user" ? "user" : one.role === "assistant" ? "assistant" : "results";
    add(kind, one.preview, one.chars, { changed: one.changed, entryId: one.entryId });
  }
  const sums = Object.fromEntries(TONES.map((tone) => [tone, 0]));
  for (const one of pieces) sums[one.kind] += one.chars;
  return { pieces, sums, total: Object.values(sums).reduce((all, one) => all + one, 0) };
}

export function Context() {
  const { query } = route.value;
  const session = query.session || settings.value.sessionKey || mainSession();
  const set = (fields) => go("context", { ...query, session, ...fields }, { replace: true });
  const runs = useCall("messages.list", { sessionKey: session, limit: 50 });
  const params = { key: session };
  if (query.run) params.runId = query.run;
  if (query.call) params.call = Number(query.call);
  const answer = useCall("context.get", params);
  const view = answer.data;
  const ran = (runs.data?.messages || []).filter((one) => one.startedAt);
  return html`<div class="page">
    <${PageHead} title=${t("Context")}>
      <${SessionSelect} value=${session} onChange=${(key) => go("context", { session: key })} />
      <select aria-label=${t("Run")} value=${query.run || ""} onChange=${(event) => set({ run: event.target.value, call: "" })}>
        <option value="">${t("Last run")}</option>
        ${ran.map((one) => html`<option key=${one.runId} value=${one.runId}>#${one.id} ${clipped(one.text || "", 40)}</option>`)}
      </select>
    <//>
    ${answer.problem?.code === "INVALID_REQUEST" ? html`<${Empty}>${query.run ? answer.problem.message : t("Nothing was sent to the model yet.")}<//>` : view ? html`<${Picture} view=${view} set=${set} />` : pending(answer)}
    <${Find} session=${session} />
  </div>`;
}

function Picture({ view, set }) {
  const { pieces, sums, total } = weighed(view);
  const shown = TONES.filter((tone) => sums[tone] > 0);
  const tokens = Math.round(total / 4);
  return html`<section class="card">
      <div class="buttons spread"><strong>${view.model}</strong><span>${dateTime(view.at)}</span>
        <span>${t("{n} characters, about {m} tokens", { n: count(total), m: short(tokens) })}</span>
        ${view.calls > 1 && html`<span class="buttons"><button disabled=${view.call <= 1} onClick=${() => set({ run: view.runId, call: view.call - 1 })} aria-label=${t("Call before")}>‹</button>
          ${t("call {n} of {m}", { n: view.call, m: view.calls })}
          <button disabled=${view.call >= view.calls} onClick=${() => set({ run: view.runId, call: view.call + 1 })} aria-label=${t("Next call")}>›</button></span>`}
      </div>
      <div class="window-bar" role="img" aria-label=${shown.map((tone) => `${t(NAMES[tone])} ${Math.round((100 * sums[tone]) / total)} %`).join(", ")}>
        ${shown.map((tone) => html`<i key=${tone} class="tone-${tone}" style=${{ flexGrow: sums[tone] }} title=${t(NAMES[tone])}></i>`)}
      </div>
      <ul class="legend">${shown.map((tone) => html`<li key=${tone}><i class="tone-${tone}"></i>${t(NAMES[tone])} <small>${count(sums[tone])} · ${Math.round((100 * sums[tone]) / total)} %</small></li>`)}</ul>
      <p class="buttons">
        ${view.pruned > 0 && html`<span class="chip warn">${t("{n} old tool results pruned", { n: view.pruned })}</span>`}
        ${view.shortened > 0 && html`<span class="chip warn">${t("{n} messages shortened", { n: view.shortened })}</span>`}
        ${view.compaction && html`<span class="chip warn">${t("begins with a summary")}</span>`}
        ${view.systemPrompt.truncated.map((one) => html`<span key=${one.name} class="chip warn">${t("{name} was cut", { name: one.name })}</span>`)}
        ${!view.exact && html`<span class="chip bad">${t("not all of it is stored any more")}</span>`}
      </p>
    </section>
    ${view.since && html`<section class="card"><h2>${t("Since the run before")}</h2>
      ${view.since.changes.length ? html`<${Changes} lines=${view.since.changes} />` : html`<p class="hint">${t("Nothing changed but the conversation.")}</p>`}</section>`}
    <details class="card"><summary><h2>${t("Every piece, in order")}</h2></summary>
      <div class="table-frame" tabindex="0"><table><caption class="hidden">${t("Every piece, in order")}</caption>
        <thead><tr><th>${t("Kind")}</th><th>${t("Beginning")}</th><th class="number">${t("Characters")}</th></tr></thead>
        <tbody>${pieces.slice(0, 500).map((one, index) => html`<tr key=${index}><td><i class="dot tone-${one.kind}"></i> ${t(NAMES[one.kind])}</td><td>${clipped(one.name || "", 160)}${one.changed ? html` <span class="chip warn">${t("changed for the model")}</span>` : ""}</td><td class="number">${count(one.chars)}</td></tr>`)}</tbody>
      </table></div></details>`;
}

// The changes as the Gateway lists them: a heading, and below it indented lines that came (+) or went (-).
function Changes({ lines }) {
  return html`<div class="changes">${lines.map((line, index) => {
    const text = line.trim();
    if (line.startsWith(" ")) return html`<div key=${index} class=${text.startsWith("+") ? "came" : text.startsWith("-") ? "went" : ""}>${text}</div>`;
    const colon = text.indexOf(":");
    return html`<h3 key=${index}>${colon < 0 ? t(text) : `${t(text.slice(0, colon))}${text.slice(colon)}`}</h3>`;
  })}</div>`;
}

// "user message 3f2c" is a kind and an id; other places have no id.
const places = (names) => (names || []).map((one) => one.replace(/^\w+ message(?= )|^.*$/, (kind) => t(kind))).join(", ");

function Find({ session }) {
  const [typed, setTyped] = useState("");
  const [phrase, setPhrase] = useState("");
  const answer = useCall("context.find", { key: session, phrase }, { skip: phrase.length < 2 });
  const { data } = answer;
  const submit = (event) => {
    event.preventDefault();
    setPhrase(typed.trim());
  };
  return html`<section class="card"><h2>${t("Find a phrase")}</h2>
    <form class="filters" onSubmit=${submit} role="search">
      <input type="search" aria-label=${t("Phrase")} placeholder=${t("Words the model may have seen")} value=${typed} onInput=${(event) => setTyped(event.target.value)} /><button type="submit">${t("Find")}</button>
    </form>
    ${phrase.length >= 2 && (!data ? pending(answer) : html`
      <p>${data.inViewNow ? t("It is in the model's view now: {where}", { where: places(data.where) }) : t("It is not in the model's view now.")} <small>${t("{n} runs searched", { n: data.runs })}</small></p>
      ${data.sightings.length ? html`<ul class="plain-list">${data.sightings.map((one, index) => html`<li key=${index}>
        <span>${one.change === "entered" ? t("came into view") : t("left")} ${places(one.where)} ${one.why && html`<small>${t(one.why)}</small>`}</span>
        <a href=${address("context", { session, run: one.runId })}>${dateTime(one.at)}</a></li>`)}</ul>` : html`<${Empty}>${t("No run had it in view.")}<//>`}`)}
  </section>`;
}
