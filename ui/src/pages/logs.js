// Logs: what the Gateway writes down, live, filtered by level and words.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../core/dom.js";
import { call, connection } from "../core/gateway.js";
import { t } from "../core/words.js";
import { Empty, Notice, PageHead } from "../parts/basics.js";

const LEVELS = ["debug", "info", "warn", "error"];
const MOST_KEPT = 3000;
const MOST_SHOWN = 500;
const POLL_MS = 2000;

let lineNumber = 0;

export function readLine(line) {
  try {
    const fields = JSON.parse(line);
    const level = String(fields.level || "info").toLowerCase().replace("warning", "warn").replace("critical", "error");
    const more = Object.entries(fields.fields || {}).map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`);
    const at = String(fields.time || "").replace("T", " ").slice(0, 23);
    return { id: ++lineNumber, line, level, at, from: fields.subsystem || "", text: String(fields.message ?? line), more: more.join(" ") };
  } catch {
    return { id: ++lineNumber, line, level: "info", at: "", from: "", text: line, more: "" };
  }
}

function useTail() {
  const [lines, setLines] = useState([]);
  const [problem, setProblem] = useState("");
  const [file, setFile] = useState("");
  const cursor = useRef(null);
  const open = connection.value.phase === "open";
  useEffect(() => {
    if (!open) return undefined;
    let current = true;
    let timer = 0;
    const poll = async () => {
      try {
        const answer = await call("logs.tail", { limit: 1000, ...(cursor.current === null ? {} : { cursor: cursor.current }) });
        if (!current) return;
        cursor.current = answer.cursor;
        setFile(answer.file);
        if (answer.lines.length || answer.reset) setLines((old) => [...(answer.reset ? [] : old), ...answer.lines.map(readLine)].slice(-MOST_KEPT));
        setProblem("");
      } catch (error) {
        if (current) setProblem(error.message);
      }
      if (current) timer = setTimeout(poll, POLL_MS);
    };
    poll();
    return () => ((current = false), clearTimeout(timer));
  }, [open]);
  return { lines, problem, file };
}

export function Logs() {
  const { lines, problem, file } = useTail();
  const [least, setLeast] = useState("info");
  const [words, setWords] = useState("");
  const [follow, setFollow] = useState(true);
  const box = useRef(null);
  const shown = useMemo(() => {
    const wanted = words.trim().toLowerCase();
    const from = LEVELS.indexOf(least);
    return lines.filter((one) => LEVELS.indexOf(one.level) >= from && (!wanted || one.line.toLowerCase().includes(wanted))).slice(-MOST_SHOWN);
  }, [lines, least, words]);
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown, follow]);
  const save = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([shown.map((one) => `${one.line}\n`).join("")], { type: "application/x-ndjson" }));
    link.download = "openclaw.log";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  return html`<div class="page full">
    <${PageHead} title=${t("Logs")}><button onClick=${save}>${t("Download")}</button><//>
    <div class="filters" role="search">
      <input type="search" aria-label=${t("Search")} placeholder=${t("Search")} value=${words} onInput=${(event) => setWords(event.target.value)} />
      <select aria-label=${t("Level")} value=${least} onChange=${(event) => setLeast(event.target.value)}>${LEVELS.map((one) => html`<option key=${one}>${one}</option>`)}</select>
      <label class="check"><input type="checkbox" checked=${follow} onChange=${(event) => setFollow(event.target.checked)} /> ${t("Follow")}</label>
    </div>
    ${problem && html`<${Notice} kind="error">${problem}<//>`}
    <p class="hint">${file}</p>
    <div class="log-lines" ref=${box} tabindex="0" role="log" aria-label=${t("Log lines")} aria-live="off">
      ${shown.length ? shown.map((one) => html`<div key=${one.id} class="level-${one.level}"><span>${one.at}</span> <b>${one.level}</b> <i>${one.from}</i> ${one.text} <small>${one.more}</small></div>`) : html`<${Empty}>${t("No line fits.")}<//>`}
    </div>
  </div>`;
}
