// The left column: conversations, or the pages behind "Manage".
import { html, useEffect, useRef, useState } from "../core/dom.js";
import { approvals } from "../core/approvals.js";
import {
  agentOf, agents, archive, chooseAgent, conversations, currentAgent, isUnread, mainSession, newKey, pin, remove, rename, running, showMore, shownRows, titleOf,
} from "../core/conversations.js";
import { dayOf } from "../core/format.js";
import { call, connection, gateway } from "../core/gateway.js";
import { address, go, route } from "../core/router.js";
import { change, settings } from "../core/settings.js";
import { LANGUAGES, language, t } from "../core/words.js";
import { PAGES } from "../pages/index.js";
import { Dialog } from "./basics.js";
import { Face } from "./face.js";
import { Icon, channelIcon } from "./icons.js";
import { Popover } from "./menu.js";

const SEARCH_MS = 180;
const PIECE = 8 << 20; // Bytes of transcripts that one search reads at most.

export function Sidebar({ open, close, openPalette }) {
  const { page } = route.value;
  const [manages, setManages] = useState(page !== "chat");
  useEffect(() => setManages(page !== "chat"), [page]);
  return html`<div class=${open ? "side open" : "side"}>
    ${manages ? html`<${Manage} close=${close} back=${() => setManages(false)} />` : html`<${Conversations} close=${close} openPalette=${openPalette} />`}
    <${Foot} manages=${manages} toggle=${() => setManages(!manages)} />
  </div>`;
}

function Foot({ manages, toggle }) {
  const { phase } = connection.value;
  const waiting = approvals.value.length;
  return html`<div class="side-foot">
    <button class="row-button" aria-expanded=${manages} onClick=${toggle}><${Icon} name="manage" /><span>${t("Manage")}</span>${waiting > 0 && html`<span class="badge" aria-hidden="true">${waiting}</span>`}</button>
    <span class="link-state ${phase}" role="status" title=${phase === "open" ? t("Connected") : t("Reconnecting…")}><span class=${phase === "open" ? "hidden" : ""}>${phase === "open" ? t("Connected") : t("Reconnecting…")}</span></span>
    <${Popover} label=${t("Preferences")} title=${t("Preferences")} trigger=${html`<${Icon} name="settings" />`} panelClass="preferences">
      <label><span>${t("Theme")}</span>
        <select value=${settings.value.theme} onChange=${(event) => change({ theme: event.target.value })}>
          <option value="system">${t("System")}</option><option value="light">${t("Light")}</option><option value="dark">${t("Dark")}</option><option value="contrast">${t("High contrast")}</option>
        </select></label>
      <label><span>${t("Language")}</span>
        <select value=${language.value} onChange=${(event) => change({ language: event.target.value })}>
          ${Object.entries(LANGUAGES).map(([code, name]) => html`<option key=${code} value=${code}>${name}</option>`)}
        </select></label>
      <button class="row-button" onClick=${() => gateway.signOut()}><${Icon} name="signout" /><span>${t("Sign out")}</span></button>
    <//>
  </div>`;
}

function Manage({ close, back }) {
  const { page, query } = route.value;
  const toChat = (event) => {
    if (page === "chat") event.preventDefault();
    back();
    close();
  };
  return html`<nav class="side-body" aria-label=${t("Manage")}>
    <a class="row-button back" href=${address("chat", query.session ? { session: query.session } : {})} onClick=${toChat}><${Icon} name="left" /><span>${t("Chat")}</span></a>
    <ul class="pages">${PAGES.filter((one) => one.path !== "chat").map((one) => html`<li key=${one.path}>
      <a class="row-button" href=${address(one.path, query.session ? { session: query.session } : {})} onClick=${close}
        aria-current=${one.path === page ? "page" : undefined}><${Icon} name=${one.icon} /><span>${t(one.name)}</span>${one.path === "approvals" && approvals.value.length > 0 ? html`<span class="badge" aria-hidden="true">${approvals.value.length}</span>` : ""}</a>
    </li>`)}</ul>
  </nav>`;
}

function AgentSwitcher() {
  const { list } = agents.value;
  const agent = currentAgent();
  return html`<${Popover} label=${t("Agent: {name}", { name: agent.name || agent.id })} className="agent-switch" panelClass="menu"
      trigger=${html`<${Face} agent=${agent} /><strong>${agent.name || agent.id}</strong><${Icon} name="down" />`}>
    ${(close) => html`
      ${list.map((one) => html`<button key=${one.id} class="row-button" aria-pressed=${one.id === agent.id} onClick=${() => (close(), chooseAgent(one.id), go("chat", { session: one.id === agents.value.defaultId ? mainSession() : `agent:${one.id}:main` }))}>
        <${Face} agent=${one} size="small" /><span>${one.name || one.id}</span>${one.id === agent.id && html`<${Icon} name="check" />`}</button>`)}
      <a class="row-button" href=${address("agents")} onClick=${() => close(false)}><${Icon} name="settings" /><span>${t("Agents")}</span></a>`}
  <//>`;
}

function Conversations({ close, openPalette }) {
  const [typed, setTyped] = useState("");
  const searching = typed.trim() !== "";
  const start = () => {
    close();
    go("chat", { session: newKey() });
  };
  const found = useRef(null);
  const key = (event) => {
    if (event.key === "Escape" && typed) (event.preventDefault(), setTyped(""));
    else if (event.key === "ArrowDown" || event.key === "Enter") {
      const first = found.current?.querySelector("a[href]");
      if (!first) return;
      event.preventDefault();
      if (event.key === "Enter") first.click();
      else first.focus();
    }
  };
  return html`<nav class="side-body" aria-label=${t("Conversations")}>
    <${AgentSwitcher} />
    <button class="new-chat" onClick=${start}><${Icon} name="compose" /><span>${t("New chat")}</span></button>
    <div class="side-search">
      <${Icon} name="search" />
      <input type="search" aria-label=${t("Search conversations")} placeholder=${t("Search conversations")} value=${typed} onInput=${(event) => setTyped(event.target.value)} onKeyDown=${key} />
      <button class="hint-key" aria-label=${t("Open the command palette")} title=${t("Open the command palette")} onClick=${openPalette}><kbd>${/Mac|iP(hone|ad)/.test(navigator.platform) ? "⌘K" : "Ctrl K"}</kbd></button>
    </div>
    <div class="side-scroll" ref=${found}>${searching ? html`<${Found} words=${typed.trim()} close=${close} />` : html`<${List} close=${close} />`}</div>
  </nav>`;
}

function List({ close }) {
  const { loaded, more } = conversations.value;
  const { pinned, rows } = shownRows(conversations.value);
  if (!loaded) return html`<ul class="skeletons" aria-hidden="true">${[70, 55, 82, 60, 74, 48].map((width) => html`<li key=${width}><i style=${{ width: `${width}%` }}></i></li>`)}</ul>`;
  if (!pinned.length && !rows.length) return html`<p class="side-empty">${t("Your conversations appear here, also those from channels such as Telegram or e-mail.")}</p>`;
  const groups = [];
  for (const row of rows) {
    const name = dayOf(row.updatedAt);
    if (groups.at(-1)?.name !== name) groups.push({ name, rows: [] });
    groups.at(-1).rows.push(row);
  }
  return html`
    ${pinned.length > 0 && html`<${Group} name=${t("Pinned")} rows=${pinned} close=${close} />`}
    ${groups.map((group) => html`<${Group} key=${group.name} name=${group.name} rows=${group.rows} close=${close} />`)}
    ${more && html`<button class="row-button more" onClick=${showMore}>${t("Show more")}</button>`}`;
}

function Group({ name, rows, close }) {
  return html`<section><h2>${name}</h2><ul>${rows.map((row) => html`<${Row} key=${row.key} row=${row} close=${close} />`)}</ul></section>`;
}

function Row({ row, close }) {
  const { page, query } = route.value;
  const current = page === "chat" && (query.session || settings.value.sessionKey || mainSession()) === row.key;
  const busy = running.value.has(row.key);
  const unread = !current && isUnread(row);
  const title = titleOf(row);
  const outside = row.channel && row.channel !== "webchat" && row.channel !== "unknown";
  const face = agents.value.list.length > 1 && !settings.value.agentId && agents.value.list.find((one) => one.id === agentOf(row.key));
  return html`<li class=${`conversation${unread ? " unread" : ""}`}>
    <a href=${address("chat", { session: row.key })} aria-current=${current ? "page" : undefined} onClick=${close} title=${title}>
      ${outside ? html`<span class="channel" title=${row.channel}><${Icon} name=${channelIcon(row.channel)} /><span class="hidden">${row.channel}: </span></span>` : face ? html`<${Face} agent=${face} size="tiny" />` : ""}
      <span class="title" dir="auto">${title}</span>
      ${busy && html`<span class="running" title=${t("running")}><span class="hidden"> (${t("running")})</span></span>`}
      ${unread && !busy && html`<span class="dot-mark" title=${t("unread")}><span class="hidden"> (${t("unread")})</span></span>`}
    </a>
    <${ConversationMenu} row=${row} />
  </li>`;
}

// What can be done with a conversation, in its row and above it.
export function ConversationMenu({ row, more = null }) {
  const [naming, setNaming] = useState(false);
  const { key } = row;
  const title = titleOf(row);
  const leave = () => {
    if ((route.value.query.session || mainSession()) === key) go("chat", { session: mainSession() === key ? newKey() : mainSession() });
  };
  return html`<${Popover} label=${t("Actions for {name}", { name: title })} panelClass="menu" trigger=${html`<${Icon} name="more" />`}>
      ${(done) => html`
        <button class="row-button" onClick=${() => (done(false), setNaming(true))}><${Icon} name="edit" /><span>${t("Rename")}</span></button>
        <button class="row-button" onClick=${() => (done(), pin(key, !row.pinnedAt))}><${Icon} name=${row.pinnedAt ? "unpin" : "pin"} /><span>${row.pinnedAt ? t("Unpin") : t("Pin")}</span></button>
        <button class="row-button" onClick=${() => (done(), leave(), archive(key, true))}><${Icon} name="archive" /><span>${t("Archive")}</span></button>
        ${more?.(done)}
        ${key !== mainSession() && html`<button class="row-button danger" onClick=${() => (done(), leave(), remove(key, title))}><${Icon} name="trash" /><span>${t("Delete")}</span></button>`}`}
    <//>
    ${naming && html`<${RenameDialog} row=${row} onClose=${() => setNaming(false)} />`}`;
}

function RenameDialog({ row, onClose }) {
  const [name, setName] = useState(titleOf(row).slice(0, 64));
  const submit = (event) => {
    event.preventDefault();
    rename(row.key, name);
    onClose();
  };
  return html`<${Dialog} title=${t("Rename")} onClose=${onClose}><form onSubmit=${submit}>
    <label class="field"><span>${t("Title")}</span><input value=${name} maxlength="64" autofocus onInput=${(event) => setName(event.target.value)} /></label>
    <div class="buttons end"><button type="button" onClick=${onClose}>${t("Cancel")}</button><button class="primary" type="submit">${t("Save")}</button></div>
  </form><//>`;
}

// What a search finds: titles first, then passages, one for each conversation.
export function useSearch(words) {
  const [found, setFound] = useState({ words: "", rows: [], hits: [], reading: false });
  useEffect(() => {
    let current = true;
    const ask = async () => {
      const named = await call("sessions.list", { search: words, limit: 20, offset: 0, includeDerivedTitles: true }).catch(() => ({ sessions: [] }));
      const lower = words.toLowerCase();
      const loaded = [...conversations.value.pinned, ...conversations.value.rows].filter((row) => titleOf(row).toLowerCase().includes(lower));
      const rows = [...loaded, ...named.sessions.filter((row) => !loaded.some((one) => one.key === row.key))].filter((row) => !row.spawnedBy).slice(0, 20);
      if (!current) return;
      setFound((old) => ({ words, rows, hits: old.words === words ? old.hits : [], reading: true }));
      for (let piece = 0; piece < 50 && current; piece += 1) {
        const answer = await call("sessions.search", { query: words, limit: 30, readBytes: PIECE }).catch(() => null);
        if (!current) return;
        const seen = new Set();
        const hits = (answer?.results || []).filter((one) => one.sessionKey && !seen.has(one.sessionKey) && seen.add(one.sessionKey)).slice(0, 12);
        const done = !answer || answer.complete;
        setFound({ words, rows, hits, reading: !done });
        if (done) return;
      }
    };
    const waits = setTimeout(ask, SEARCH_MS);
    return () => {
      current = false;
      clearTimeout(waits);
    };
  }, [words]);
  return found;
}

function Found({ words, close }) {
  const { rows, hits, reading, words: answered } = useSearch(words);
  const empty = answered === words && !reading && !rows.length && !hits.length;
  return html`
    ${rows.length > 0 && html`<${Group} name=${t("Titles")} rows=${rows} close=${close} />`}
    ${hits.length > 0 && html`<section><h2>${t("Messages")}</h2><ul>${hits.map((one) => html`<li key=${one.sessionKey} class="hit">
      <a href=${address("chat", { session: one.sessionKey })} onClick=${close}><span class="title">${titleOf(conversations.value.rows.find((row) => row.key === one.sessionKey) || rows.find((row) => row.key === one.sessionKey) || { key: one.sessionKey, derivedTitle: one.snippet.slice(0, 40) })}</span><small>${one.snippet}</small></a></li>`)}</ul></section>`}
    ${empty && html`<p class="side-empty">${t("Nothing matches “{words}”.", { words })}</p>`}
    ${reading && html`<p class="side-empty" role="status">${t("Searching…")}</p>`}`;
}
