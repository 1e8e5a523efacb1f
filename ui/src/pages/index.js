// The pages, in the order of the navigation. A page is a file here and a row: its path, its name and icon, its view.
// All but the chat are loaded when they are opened.
import { html, signal } from "../core/dom.js";
import { Empty, Notice } from "../parts/basics.js";
import { t } from "../core/words.js";
import { Chat } from "./chat/chat.js";

function later(load, name) {
  const view = signal(null);
  const problem = signal("");
  let asked = false;
  const ask = () => {
    asked = true;
    load().then((all) => (view.value = all[name]), () => ((asked = false), (problem.value = t("This page could not be loaded. Reload to try again."))));
  };
  return function Later() {
    if (!asked) ask();
    const View = view.value;
    if (View) return html`<${View} />`;
    return problem.value ? html`<div class="page"><${Notice} kind="error">${problem.value}<//></div>` : html`<${Empty}>${t("Loading…")}<//>`;
  };
}

export const PAGES = [
  { path: "chat", name: "Chat", icon: "chat", view: Chat },
  { path: "sessions", name: "Sessions", icon: "sessions", view: later(() => import("./sessions.js"), "Sessions") },
  { path: "transcript", name: "Transcript", icon: "transcript", view: later(() => import("./transcript.js"), "Transcript") },
  { path: "context", name: "Context", icon: "context", view: later(() => import("./context.js"), "Context") },
  { path: "messages", name: "Messages", icon: "messages", view: later(() => import("./messages.js"), "Messages") },
  { path: "agents", name: "Agents", icon: "agents", view: later(() => import("./agents.js"), "Agents") },
  { path: "channels", name: "Channels", icon: "channels", view: later(() => import("./channels.js"), "Channels") },
  { path: "approvals", name: "Approvals", icon: "approvals", view: later(() => import("./approvals.js"), "Approvals") },
  { path: "usage", name: "Usage", icon: "usage", view: later(() => import("./usage.js"), "Usage") },
  { path: "logs", name: "Logs", icon: "logs", view: later(() => import("./logs.js"), "Logs") },
  { path: "debug", name: "Debug", icon: "debug", view: later(() => import("./debug.js"), "Debug") },
  { path: "settings", name: "Settings", icon: "settings", view: later(() => import("./config.js"), "Config") },
];
