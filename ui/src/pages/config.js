// Config: a form made from the schema, and the file itself. Both are checked by the Gateway before anything changes.
import { html, useMemo, useState } from "../core/dom.js";
import { call } from "../core/gateway.js";
import { go, route } from "../core/router.js";
import { language, t } from "../core/words.js";
import { Empty, Notice, PageHead, pending, told, useCall } from "../parts/basics.js";

const MOST_FOUND = 60;

export function Config() {
  const { query } = route.value;
  const raw = query.view === "file";
  const file = useCall("config.get");
  const set = (fields) => go("settings", { ...query, ...fields }, { replace: true });
  return html`<div class="page">
    <${PageHead} title=${t("Settings")}>
      <span class="tabs" role="group" aria-label=${t("View")}><button aria-pressed=${!raw} onClick=${() => set({ view: "" })}>${t("Form")}</button><button aria-pressed=${raw} onClick=${() => set({ view: "file" })}>${t("File")}</button></span>
    <//>
    ${!file.data ? pending(file) : html`
      <p class="hint">${file.data.path}</p>
      <${Issues} issues=${file.data.issues} kind="error" /><${Issues} issues=${file.data.warnings} />
      ${raw ? html`<${RawFile} file=${file.data} reload=${file.reload} />` : html`<${Form} file=${file.data} reload=${file.reload} find=${query.find || ""} setFind=${(find) => set({ find })} />`}`}
  </div>`;
}

function Issues({ issues, kind = "info" }) {
  if (!issues?.length) return null;
  return html`<${Notice} kind=${kind}>${issues.slice(0, 20).map((one, index) => html`<span key=${index} class="issue">${one.path && html`<code>${one.path}</code>`} ${one.message}${one.line ? ` (${t("line {n}", { n: one.line })})` : ""}</span>`)}<//>`;
}

function RawFile({ file, reload }) {
  const [text, setText] = useState(null);
  const [issues, setIssues] = useState([]);
  const shown = text ?? file.raw ?? "{}\n";
  const save = async () => {
    try {
      setIssues([]);
      const done = await call("config.apply", { raw: shown, ...(file.hash ? { baseHash: file.hash } : {}) });
      told(done.restart?.mode === "hot" || !done.sentinel ? t("Saved and applied") : t("Saved; the Gateway restarts"));
      setText(null);
      reload();
    } catch (error) {
      setIssues(error.details?.issues || [{ path: "", message: error.message }]);
    }
  };
  return html`<${Issues} issues=${issues} kind="error" />
    <textarea class="code tall" spellcheck="false" aria-label=${t("Configuration file")} value=${shown} onInput=${(event) => setText(event.target.value)}></textarea>
    <div class="buttons"><button class="primary" disabled=${text === null} onClick=${save}>${t("Save and apply")}</button>
      ${text !== null && html`<button onClick=${() => (setText(null), setIssues([]))}>${t("Cancel")}</button>`}
      <small>${t("Secrets are shown as a mark. A mark that stays keeps its secret.")}</small></div>`;
}

// The plain shape of a field: what may be null beside it is only "not set".
function plainShape(shape) {
  const kinds = shape.anyOf || shape.oneOf;
  if (!kinds) return shape;
  const real = kinds.filter((one) => one.type !== "null");
  return real.length === 1 ? { ...real[0], description: shape.description || real[0].description, default: shape.default } : shape;
}

function at(value, path) {
  return path.reduce((found, name) => (found && typeof found === "object" ? found[name] : undefined), value);
}

// Every field whose path or description has the words: paths that begin with them, then other paths, then the rest.
function found(schema, words) {
  const ranks = [[], [], []];
  const walk = (shape, path) => {
    for (const [name, inner] of Object.entries(plainShape(shape).properties || {})) {
      const plain = plainShape(inner);
      const here = [...path, name];
      const place = here.join(".").toLowerCase();
      if (plain.properties) walk(plain, here);
      else if (place.startsWith(words)) ranks[0].push([here, plain]);
      else if (place.includes(words)) ranks[1].push([here, plain]);
      else if ((plain.description || "").toLowerCase().includes(words)) ranks[2].push([here, plain]);
    }
  };
  walk(schema, []);
  return ranks.flat().slice(0, MOST_FOUND);
}

function Form({ file, reload, find, setFind }) {
  const schema = useCall("config.schema", language.value === "en" ? {} : { language: language.value });
  const [changes, setChanges] = useState({}); // Path, joined by newlines → value; null takes a setting out.
  const [issues, setIssues] = useState([]);
  const words = find.trim().toLowerCase();
  const rows = useMemo(() => (schema.data && words ? found(schema.data.schema, words) : []), [schema.data, words]);
  if (!schema.data) return pending(schema);
  const keys = Object.keys(changes);
  const save = async () => {
    const patch = {};
    for (const key of keys) {
      const path = key.split("\n");
      let place = patch;
      for (const name of path.slice(0, -1)) place = place[name] ??= {};
      place[path[path.length - 1]] = changes[key];
    }
    try {
      setIssues([]);
      const done = await call("config.patch", { raw: JSON.stringify(patch), ...(file.hash ? { baseHash: file.hash } : {}) });
      told(done.sentinel ? t("Saved; the Gateway restarts") : t("Saved and applied"));
      setChanges({});
      reload();
    } catch (error) {
      setIssues(error.details?.issues || [{ path: "", message: error.message }]);
    }
  };
  const change = (path, value) => {
    const key = path.join("\n");
    const { [key]: _old, ...others } = changes;
    const stored = at(file.parsed, path);
    setChanges(value === stored || (value === null && stored === undefined) ? others : { ...changes, [key]: value });
  };
  const valueAt = (path) => {
    const key = path.join("\n");
    if (key in changes) return changes[key] === null ? undefined : changes[key];
    return at(file.parsed, path);
  };
  const context = { change, valueAt };
  return html`<div class="filters" role="search"><input type="search" aria-label=${t("Find a setting")} placeholder=${t("Find a setting")} value=${find} onInput=${(event) => setFind(event.target.value)} /></div>
    <${Issues} issues=${issues} kind="error" />
    ${words ? html`<section class="card">${rows.length ? rows.map(([path, shape]) => html`<${Setting} key=${path.join(".")} path=${path} shape=${shape} context=${context} />`) : html`<${Empty}>${t("No setting fits.")}<//>`}</section>`
      : Object.entries(schema.data.schema.properties).filter(([name]) => name !== "$schema").map(([name, shape]) => html`<${Group} key=${name} path=${[name]} shape=${plainShape(shape)} context=${context} />`)}
    ${keys.length > 0 && html`<div class="save-bar"><span>${t("{n} changes", { n: keys.length })}: ${keys.map((key) => key.replaceAll("\n", ".")).join(", ")}</span>
      <button class="primary" onClick=${save}>${t("Save and apply")}</button><button onClick=${() => (setChanges({}), setIssues([]))}>${t("Cancel")}</button></div>`}`;
}

function Group({ path, shape, context }) {
  const [open, setOpen] = useState(false);
  if (!shape.properties) return html`<section class="card"><${Setting} path=${path} shape=${shape} context=${context} /></section>`;
  return html`<details class=${path.length === 1 ? "card" : "subgroup"} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${path.length === 1 ? html`<h2>${path[0]}</h2>` : html`<strong>${path[path.length - 1]}</strong>`} <small>${shape.description || ""}</small></summary>
    ${open && Object.entries(shape.properties).map(([name, inner]) => {
      const plain = plainShape(inner);
      const here = [...path, name];
      return plain.properties ? html`<${Group} key=${name} path=${here} shape=${plain} context=${context} />` : html`<${Setting} key=${name} path=${here} shape=${plain} context=${context} />`;
    })}
  </details>`;
}

function Setting({ path, shape, context }) {
  const value = context.valueAt(path);
  const name = path.join(".");
  const change = (next) => context.change(path, next);
  const usual = shape.default === undefined || shape.default === null ? "" : JSON.stringify(shape.default);
  return html`<div class="setting"><label for=${`set-${name}`}><code>${name}</code><small>${shape.description || ""}</small></label>
    <${Input} id=${`set-${name}`} shape=${shape} value=${value} change=${change} usual=${usual} /></div>`;
}

function Input({ id, shape, value, change, usual }) {
  const [draft, setDraft] = useState(null);
  const [wrong, setWrong] = useState(false);
  const unset = usual ? t("default: {value}", { value: usual }) : t("not set");
  const choices = shape.type === "boolean" ? [true, false] : shape.enum;
  if (choices) {
    const index = choices.findIndex((one) => one === value);
    return html`<select id=${id} value=${String(index)} onChange=${(event) => change(event.target.value === "-1" ? null : choices[Number(event.target.value)])}>
      <option value="-1">${unset}</option>${choices.map((one, place) => html`<option key=${place} value=${String(place)}>${String(one)}</option>`)}</select>`;
  }
  if (shape.type === "string" || shape.type === "integer" || shape.type === "number") {
    const read = (text) => (text === "" ? null : shape.type === "string" ? text : Number(text));
    return html`<input id=${id} type=${shape.type === "string" ? "text" : "number"} step="any" value=${value ?? ""} placeholder=${unset} spellcheck="false" onInput=${(event) => change(read(event.target.value))} />`;
  }
  const shown = draft ?? (value === undefined ? "" : JSON.stringify(value, null, 2));
  const typed = (text) => {
    setDraft(text);
    try {
      change(text.trim() ? JSON.parse(text) : null);
      setWrong(false);
    } catch {
      setWrong(true);
    }
  };
  return html`<textarea id=${id} class="code" rows=${Math.min(8, shown.split("\n").length + 1)} spellcheck="false" value=${shown} placeholder=${unset} aria-invalid=${wrong} onInput=${(event) => typed(event.target.value)} onBlur=${() => !wrong && setDraft(null)}></textarea>`;
}
