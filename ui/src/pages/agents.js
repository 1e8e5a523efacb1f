// Agents & cron: the agents with the files that make them who they are, and the jobs that run on a schedule.
import { html, useEffect, useState } from "../core/dom.js";
import { ago, bytes, clipped, dateTime, duration } from "../core/format.js";
import { call, gateway } from "../core/gateway.js";
import { address } from "../core/router.js";
import { t } from "../core/words.js";
import { Dialog, Empty, Field, Notice, PageHead, pending, told, useCall } from "../parts/basics.js";
import { Sure } from "../parts/sure.js";

export function Agents() {
  const agents = useCall("agents.list", { details: true });
  return html`<div class="page">
    <${PageHead} title=${t("Agents")} />
    <h2>${t("Who answers")}</h2>
    ${!agents.data ? pending(agents) : agents.data.agents.map((one) => html`<${Agent} key=${one.id} agent=${one} isDefault=${one.id === agents.data.defaultId} />`)}
    <${Jobs} agents=${agents.data?.agents || []} />
  </div>`;
}

function Agent({ agent, isDefault }) {
  const files = useCall("agents.files.list", { agentId: agent.id });
  const [open, setOpen] = useState("");
  return html`<section class="card"><div class="buttons spread"><h3>${agent.identity?.emoji || ""} ${agent.identity?.name || agent.name || agent.id}</h3>
      <span class="buttons">${isDefault && html`<span class="chip good">${t("default")}</span>`}<span class="chip">${agent.model || t("no model")}</span></span></div>
    <p class="hint">${agent.workspace}${agent.routes?.length ? html`<br />${agent.routes.join(", ")}` : ""}</p>
    <div class="buttons">${(files.data?.files || []).map((one) => html`<button key=${one.name} class=${one.missing ? "missing" : ""} onClick=${() => setOpen(one.name)}>${one.name} <small>${one.missing ? t("not there") : bytes(one.size)}</small></button>`)}
      <a href=${address("chat", { session: `agent:${agent.id}:main` })}>${t("Chat")}</a></div>
    ${open && html`<${FileDialog} agentId=${agent.id} name=${open} onClose=${() => (setOpen(""), files.reload())} />`}
  </section>`;
}

function FileDialog({ agentId, name, onClose }) {
  const answer = useCall("agents.files.get", { agentId, name });
  const [text, setText] = useState(null);
  const shown = text ?? answer.data?.file.content ?? "";
  const save = () => call("agents.files.set", { agentId, name, content: shown }).then(() => (told(t("Saved")), onClose()), told);
  return html`<${Dialog} wide title=${`${name} (${agentId})`} onClose=${onClose}>
    ${pending(answer) || html`<textarea class="code tall" aria-label=${name} value=${shown} onInput=${(event) => setText(event.target.value)}></textarea>
      <div class="buttons"><button class="primary" disabled=${text === null} onClick=${save}>${t("Save")}</button><button onClick=${onClose}>${t("Cancel")}</button></div>`}
  <//>`;
}

function scheduleText(schedule) {
  if (schedule.kind === "at") return t("once, {time}", { time: dateTime(Date.parse(schedule.at) || schedule.atMs) });
  if (schedule.kind === "every") return t("every {time}", { time: duration(schedule.everyMs) });
  return `${schedule.expr}${schedule.tz ? ` (${schedule.tz})` : ""}`;
}

function Jobs({ agents }) {
  const jobs = useCall("cron.list", { includeDisabled: true });
  const status = useCall("cron.status");
  const [adding, setAdding] = useState(false);
  const [history, setHistory] = useState(null);
  useEffect(() => gateway.on((event) => event === "cron" && jobs.reload()), []);
  const act = (method, params, news) => () => call(method, params).then(() => (news && told(news), jobs.reload()), told);
  const rows = jobs.data?.jobs;
  return html`<div class="buttons spread"><h2>${t("Scheduled jobs")}</h2><button class="primary" onClick=${() => setAdding(true)}>${t("New job")}</button></div>
    ${status.data && status.data.enabled === false && html`<${Notice}>${t("Scheduled jobs are switched off.")}<//>`}
    ${!rows ? pending(jobs) : !rows.length ? html`<${Empty}>${t("No job is scheduled.")}<//>` : rows.map((job) => html`<section class="card" key=${job.id}>
      <div class="buttons spread"><h3>${job.name}</h3><span class="buttons"><span class="chip">${scheduleText(job.schedule)}</span>
        <span class="chip ${job.enabled === false ? "" : job.state?.lastStatus === "error" ? "bad" : "good"}">${job.enabled === false ? t("off") : job.state?.lastStatus || t("on")}</span></span></div>
      <p class="plain">${clipped(job.payload.message || job.payload.text || "", 400)}</p>
      <p class="hint">${job.agentId || ""} ${job.state?.nextRunAtMs ? t("next {time}", { time: dateTime(job.state.nextRunAtMs) }) : ""} ${job.state?.lastRunAtMs ? `· ${t("last {ago}", { ago: ago(job.state.lastRunAtMs) })}` : ""} ${job.state?.lastError ? html`<span class="bad">${job.state.lastError}</span>` : ""}</p>
      <div class="buttons">
        <button onClick=${act("cron.run", { id: job.id }, t("Started"))}>${t("Run now")}</button>
        <button onClick=${act("cron.update", { id: job.id, patch: { enabled: job.enabled === false } })}>${job.enabled === false ? t("Switch on") : t("Switch off")}</button>
        <button onClick=${() => setHistory(job)}>${t("History")}</button>
        <${Sure} danger onSure=${act("cron.remove", { id: job.id }, t("Removed"))}>${t("Remove")}<//>
      </div></section>`)}
    ${adding && html`<${NewJob} agents=${agents} onClose=${() => setAdding(false)} added=${() => (setAdding(false), jobs.reload())} />`}
    ${history && html`<${History} job=${history} onClose=${() => setHistory(null)} />`}`;
}

function History({ job, onClose }) {
  const answer = useCall("cron.runs", { id: job.id, limit: 100 });
  const rows = answer.data?.entries;
  return html`<${Dialog} wide title=${t("Runs of {name}", { name: job.name })} onClose=${onClose}>
    ${!rows ? pending(answer) : rows.length ? html`<ul class="plain-list">${[...rows].reverse().map((one, index) => html`<li key=${index}><span>${dateTime(one.runAtMs || one.ts)} <small>${one.durationMs === undefined ? "" : duration(one.durationMs)}</small><br /><small>${one.error || one.summary || ""}</small></span><span class="chip ${one.status === "ok" ? "good" : one.status === "error" ? "bad" : ""}">${one.status || one.action}</span></li>`)}</ul>` : html`<${Empty}>${t("It has not run yet.")}<//>`}
  <//>`;
}

function NewJob({ agents, onClose, added }) {
  const [job, setJob] = useState({ name: "", agentId: "", kind: "cron", expr: "0 9 * * *", minutes: 60, at: "", target: "isolated", delivery: "none", text: "" });
  const [problem, setProblem] = useState("");
  const set = (name) => (event) => setJob({ ...job, [name]: event.target.value });
  const save = async (event) => {
    event.preventDefault();
    const schedule = { cron: { kind: "cron", expr: job.expr, tz: Intl.DateTimeFormat().resolvedOptions().timeZone }, every: { kind: "every", everyMs: Number(job.minutes) * 60_000 }, at: { kind: "at", at: job.at ? new Date(job.at).toISOString() : "" } }[job.kind];
    const payload = job.target === "main" ? { kind: "systemEvent", text: job.text } : { kind: "agentTurn", message: job.text };
    try {
      const delivery = job.target === "main" ? {} : { delivery: { mode: job.delivery } };
      await call("cron.add", { name: job.name, schedule, payload, sessionTarget: job.target, ...delivery, ...(job.agentId ? { agentId: job.agentId } : {}) });
      told(t("Saved"));
      added();
    } catch (error) {
      setProblem(error.message);
    }
  };
  return html`<${Dialog} title=${t("New job")} onClose=${onClose}><form onSubmit=${save}>
    ${problem && html`<${Notice} kind="error">${problem}<//>`}
    <${Field} label=${t("Name")}><input required value=${job.name} onInput=${set("name")} /><//>
    <${Field} label=${t("What the agent is told")}><textarea required rows="3" value=${job.text} onInput=${set("text")}></textarea><//>
    <div class="grid">
      <${Field} label=${t("When")}><select value=${job.kind} onChange=${set("kind")}><option value="cron">${t("On a cron schedule")}</option><option value="every">${t("Again and again")}</option><option value="at">${t("Once")}</option></select><//>
      ${job.kind === "cron" && html`<${Field} label=${t("Cron expression")}><input value=${job.expr} onInput=${set("expr")} spellcheck="false" /><//>`}
      ${job.kind === "every" && html`<${Field} label=${t("Minutes between runs")}><input type="number" min="1" value=${job.minutes} onInput=${set("minutes")} /><//>`}
      ${job.kind === "at" && html`<${Field} label=${t("Time")}><input type="datetime-local" required value=${job.at} onInput=${set("at")} /><//>`}
      <${Field} label=${t("Where")}><select value=${job.target} onChange=${set("target")}><option value="isolated">${t("In a session of its own")}</option><option value="main">${t("In the main session")}</option></select><//>
      ${job.target === "isolated" && html`<${Field} label=${t("Its answer")}><select value=${job.delivery} onChange=${set("delivery")}><option value="none">${t("is kept in its session")}</option><option value="announce">${t("goes to the last chat on a channel")}</option></select><//>`}
      ${agents.length > 1 && html`<${Field} label=${t("Agent")}><select value=${job.agentId} onChange=${set("agentId")}><option value="">${t("Default")}</option>${agents.map((one) => html`<option key=${one.id}>${one.id}</option>`)}</select><//>`}
    </div>
    <div class="buttons"><button class="primary" type="submit">${t("Save")}</button><button type="button" onClick=${onClose}>${t("Cancel")}</button></div>
  </form><//>`;
}
