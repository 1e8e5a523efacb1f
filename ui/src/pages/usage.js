// Usage: tokens and money over time, by model, agent, channel and session.
import { html, useState } from "../core/dom.js";
import { count, money, short } from "../core/format.js";
import { address, go, route } from "../core/router.js";
import { t } from "../core/words.js";
import { Empty, PageHead, pending, useCall } from "../parts/basics.js";
import { Chart } from "../parts/chart.js";

const RANGES = [7, 30, 90];

function daysBack(days) {
  const day = (ms) => new Date(ms).toISOString().slice(0, 10);
  return { startDate: day(Date.now() - (days - 1) * 86_400_000), endDate: day(Date.now()) };
}

export function Usage() {
  const { query } = route.value;
  const days = Number(query.days) || 30;
  const [unit, setUnit] = useState("tokens");
  const answer = useCall("sessions.usage", { ...daysBack(days), limit: 50 });
  const { data } = answer;
  return html`<div class="page">
    <${PageHead} title=${t("Usage")}>
      <select aria-label=${t("Time")} value=${days} onChange=${(event) => go("usage", { days: event.target.value }, { replace: true })}>
        ${RANGES.map((one) => html`<option key=${one} value=${one}>${t("Last {n} days", { n: one })}</option>`)}
      </select>
      <select aria-label=${t("Unit")} value=${unit} onChange=${(event) => setUnit(event.target.value)}><option value="tokens">${t("Tokens")}</option><option value="cost">${t("Cost")}</option></select>
    <//>
    ${!data ? pending(answer) : html`<${Report} data=${data} unit=${unit} days=${days} />`}
  </div>`;
}

function Report({ data, unit, days }) {
  const { totals, aggregates } = data;
  const messages = aggregates.messages || {};
  return html`<dl class="figures">
      <div><dt>${t("Tokens")}</dt><dd>${short(totals.totalTokens)}</dd></div>
      <div><dt>${t("Cost")}</dt><dd>${money(totals.totalCost)}</dd></div>
      <div><dt>${t("Messages")}</dt><dd>${count(messages.total)}</dd></div>
      <div><dt>${t("Tool calls")}</dt><dd>${count(messages.toolCalls)}</dd></div>
      <div><dt>${t("Errors")}</dt><dd>${count(messages.errors)}</dd></div>
    </dl>
    <section class="card"><h2>${t("By day")}</h2><${Days} rows=${aggregates.modelDaily} unit=${unit} days=${days} /></section>
    <div class="columns">
      <${Ranking} title=${t("By model")} rows=${aggregates.byModel.map((one) => [`${one.provider}/${one.model}`, one.totals])} unit=${unit} />
      <${Ranking} title=${t("By agent")} rows=${aggregates.byAgent.map((one) => [one.agentId, one.totals])} unit=${unit} />
      <${Ranking} title=${t("By channel")} rows=${aggregates.byChannel.map((one) => [one.channel, one.totals])} unit=${unit} />
      <${Ranking} title=${t("By session")} link=${(key) => address("chat", { session: key })} rows=${data.sessions.map((one) => [one.key, one.usage])} unit=${unit} />
    </div>`;
}

function Days({ rows, unit, days }) {
  const said = (value) => (unit === "cost" ? money(value) : short(value));
  if (!rows.length) return html`<${Empty}>${t("Nothing was used in this time.")}<//>`;
  const dates = Array.from({ length: days }, (_, index) => new Date(Date.now() - (days - 1 - index) * 86_400_000).toISOString().slice(0, 10));
  const models = [...new Set(rows.map((one) => one.model))];
  const used = new Map(models.map((model) => [model, dates.map(() => 0)]));
  for (const one of rows) {
    const day = dates.indexOf(one.date);
    if (day >= 0) used.get(one.model)[day] += one[unit];
  }
  const sum = (day) => models.reduce((all, model) => all + used.get(model)[day], 0);
  const busy = dates.map((date, day) => [date, day]).filter(([, day]) => sum(day) > 0);
  // A picture says nothing to a screen reader, so the same figures are there as words and as a table.
  return html`<div role="img" aria-label=${busy.map(([date, day]) => `${date}: ${said(sum(day))}`).join(", ")}>
      <${Chart} dates=${dates} series=${[...used]} said=${said} />
    </div>
    <details><summary>${t("As a table")}</summary><div class="table-frame" tabindex="0"><table>
      <thead><tr><th>${t("Day")}</th>${models.map((model) => html`<th key=${model}>${model}</th>`)}</tr></thead>
      <tbody>${busy.reverse().map(([date, day]) => html`<tr key=${date}><td>${date}</td>${models.map((model) => html`<td key=${model}>${said(used.get(model)[day])}</td>`)}</tr>`)}</tbody>
    </table></div></details>`;
}

function Ranking({ title, rows, unit, link }) {
  const value = (totals) => (unit === "cost" ? totals.totalCost : totals.totalTokens) || 0;
  const sorted = [...rows].sort((one, other) => value(other[1]) - value(one[1])).slice(0, 20);
  const most = Math.max(...sorted.map(([, totals]) => value(totals)), unit === "cost" ? 0.0001 : 1);
  return html`<section class="card"><h2>${title}</h2>${sorted.length ? html`<ul class="ranking">${sorted.map(([name, totals]) => html`<li key=${name}>
    <i style=${{ width: `${(100 * value(totals)) / most}%` }}></i>${link ? html`<a href=${link(name)}>${name}</a>` : html`<span>${name}</span>`}
    <b>${unit === "cost" ? money(totals.totalCost) : short(totals.totalTokens)}</b></li>`)}</ul>` : html`<p class="hint">–</p>`}</section>`;
}
