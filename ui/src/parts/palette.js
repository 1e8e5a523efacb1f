// The command palette: conversations, pages, commands and models by their names.
import { html, useEffect, useMemo, useRef, useState } from "../core/dom.js";
import { conversations, newKey, shownRows, titleOf } from "../core/conversations.js";
import { call, gateway } from "../core/gateway.js";
import { go, route } from "../core/router.js";
import { change, draft, settings } from "../core/settings.js";
import { LANGUAGES, language, t } from "../core/words.js";
import { PAGES } from "../pages/index.js";
import { Dialog, told, useCall } from "./basics.js";
import { Icon, channelIcon } from "./icons.js";
import { useSearch } from "./sidebar.js";

const MOST = 8;

function currentSession() {
  return route.value.query.session || settings.value.sessionKey || "main";
}

export function Palette({ onClose }) {
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const input = useRef(null);
  const list = useRef(null);
  const commands = useCall("chat.commands").data?.commands || [];
  const models = useCall("models.list").data?.models || [];
  const words = typed.trim().toLowerCase();
  const found = useSearch(words.length > 1 ? words : "");
  useEffect(() => input.current.focus(), []);
  useEffect(() => setChosen(0), [typed]);

  const groups = useMemo(() => {
    const fits = (text) => words.split(/\s+/).every((one) => text.toLowerCase().includes(one));
    const { pinned, rows } = shownRows(conversations.value);
    const asked = words.length > 1 && found.words === words ? found.rows : [];
    const chats = [...[...pinned, ...rows].filter((row) => fits(titleOf(row))), ...asked];
    const unique = [...new Map(chats.map((row) => [row.key, row])).values()];
    const session = currentSession();
    const actions = [
      { name: t("New chat"), icon: "compose", run: () => go("chat", { session: newKey() }) },
      ...["light", "dark", "system", "contrast"].map((theme) => ({ name: `${t("Theme")}: ${t({ light: "Light", dark: "Dark", system: "System", contrast: "High contrast" }[theme])}`, icon: theme === "dark" ? "moon" : "sun", run: () => change({ theme }) })),
      ...Object.entries(LANGUAGES).filter(([code]) => code !== language.value).map(([code, name]) => ({ name: `${t("Language")}: ${name}`, icon: "language", run: () => change({ language: code }) })),
      { name: t("Sign out"), icon: "signout", run: () => gateway.signOut() },
    ];
    return [
      { name: t("Conversations"), items: unique.slice(0, words ? MOST : 5).map((row) => ({ id: row.key, name: titleOf(row), icon: row.channel && row.channel !== "webchat" && row.channel !== "unknown" ? channelIcon(row.channel) : "chat", run: () => go("chat", { session: row.key }) })) },
      { name: t("Pages"), items: PAGES.filter((one) => one.path !== "chat" && fits(t(one.name))).map((one) => ({ name: t(one.name), icon: one.icon, run: () => go(one.path, route.value.query.session ? { session: route.value.query.session } : {}) })) },
      { name: t("Actions"), items: actions.filter((one) => words ? fits(one.name) : one.icon === "compose") },
      { name: t("Commands"), items: words ? commands.filter((one) => fits(`/${one.name} ${t(one.help)}`)).slice(0, MOST).map((one) => ({ name: `/${one.name}`, hint: t(one.help), icon: "terminal", run: () => (draft(session, `/${one.name}${one.usage ? " " : ""}`), dispatchEvent(new CustomEvent("openclaw:draft")), go("chat", route.value.query.session ? { session } : {})) })) : [] },
      { name: t("Models"), items: words ? models.filter((one) => one.available && fits(`${one.provider}/${one.id} ${one.name || ""}`)).slice(0, MOST).map((one) => ({ name: one.name || one.id, hint: `${one.provider}/${one.id}`, icon: "sparkles", run: () => call("sessions.patch", { key: session, model: `${one.provider}/${one.id}` }).then(() => (told(t("This chat now uses {name}.", { name: one.name || one.id })), dispatchEvent(new CustomEvent("openclaw:facts"))), told) })) : [] },
    ].filter((group) => group.items.length);
  }, [words, found, commands, models, conversations.value, language.value]);
  const items = groups.flatMap((group) => group.items);
  const index = Math.min(chosen, Math.max(0, items.length - 1));
  useEffect(() => list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }), [index, groups]);
  const run = (item) => {
    if (!item) return;
    onClose();
    item.run();
  };
  const key = (event) => {
    if (event.isComposing) return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && items.length) (event.preventDefault(), setChosen((index + step + items.length) % items.length));
    else if (event.key === "Enter") (event.preventDefault(), run(items[index]));
  };
  let at = -1;
  return html`<${Dialog} title=${t("Command palette")} onClose=${onClose} className="command-palette">
    <div class="palette-input"><${Icon} name="search" /><input ref=${input} type="text" role="combobox" aria-expanded="true" aria-controls="palette-items" aria-label=${t("Search or command")} placeholder=${t("Find a chat, a page, a command or a model")} autocomplete="off" spellcheck="false"
      aria-activedescendant=${items.length ? `palette-${index}` : undefined} value=${typed} onInput=${(event) => setTyped(event.target.value)} onKeyDown=${key} /></div>
    <div class="palette-items" id="palette-items" role="listbox" aria-label=${t("Results")} ref=${list} tabindex="-1">
      ${groups.map((group) => html`<div key=${group.name} role="group" aria-label=${group.name}><h3 aria-hidden="true">${group.name}</h3>
        ${group.items.map((item) => {
          at += 1;
          const mine = at;
          return html`<div key=${item.id || item.name} id="palette-${mine}" role="option" aria-selected=${mine === index} onClick=${() => run(item)} onMouseMove=${() => mine !== index && setChosen(mine)}>
            <${Icon} name=${item.icon} /><span class="title">${item.name}</span>${item.hint && html`<small>${item.hint}</small>`}</div>`;
        })}</div>`)}
    </div>
    ${!items.length && html`<p class="empty">${t("Nothing matches “{words}”.", { words: typed })}</p>`}
  <//>`;
}
