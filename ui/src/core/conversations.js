// The list of conversations: what the left column shows, and what can be done with one of them.
import { batch, signal } from "./dom.js";
import { call, connection, gateway } from "./gateway.js";
import { change, settings } from "./settings.js";
import { t } from "./words.js";
import { told } from "../parts/basics.js";

const STEP = 40;
const RELOAD_MS = 400;
const UNDO_MS = 7000;
const MOST_PINNED = 50;

export const conversations = signal({ rows: [], pinned: [], more: false, loaded: false });
export const running = signal(new Set()); // The keys of sessions in which a message is answered.
export const agents = signal({ list: [], defaultId: "main" });
const removed = signal(new Map()); // Deleted ones that can still be brought back: key to timer.
const opened = signal(""); // The key of the conversation that is on the screen.

let size = STEP;
let timer = 0;
let turn = 0;

export function mainSession() {
  return connection.value.hello?.snapshot.sessionDefaults?.mainSessionKey || "agent:main:main";
}

export function agentOf(key) {
  return /^agent:([^:]+):/.exec(key || "")?.[1] || agents.value.defaultId;
}

// The agent whose conversations are shown.
export function currentAgent() {
  const { list, defaultId } = agents.value;
  return list.find((one) => one.id === settings.value.agentId) || list.find((one) => one.id === defaultId) || list[0] || { id: defaultId, name: "" };
}

export function chooseAgent(id) {
  change({ agentId: id });
  size = STEP;
  conversations.value = { rows: [], pinned: [], more: false, loaded: false };
  load();
}

const GROUP_NAME = /^[a-z]+:(?:g-)?(.+)$/;

// Label, then the name of the group or contact, then the beginning of the first message.
export function titleOf(row) {
  if (!row) return t("New chat");
  if (row.label) return row.label;
  const named = row.subject || row.displayName;
  if (named && row.channel !== "webchat") return GROUP_NAME.exec(named)?.[1] || named;
  const untitled = !row.derivedTitle || (row.sessionId && row.derivedTitle.startsWith(`${row.sessionId.slice(0, 8)} (`));
  if (!untitled) return row.derivedTitle;
  return row.key === mainSession() ? t("Main chat") : t("New chat");
}

export function isUnread(row) {
  return row.key !== opened.value && (row.updatedAt || 0) > (row.readAt ?? settings.value.since);
}

export function newKey(agentId = currentAgent().id) {
  const random = crypto.getRandomValues(new Uint8Array(6));
  return `agent:${agentId}:chat-${[...random].map((one) => one.toString(16).padStart(2, "0")).join("")}`;
}

export async function load() {
  const mine = ++turn;
  try {
    const named = settings.value.agentId ? { agentId: currentAgent().id } : {};
    const common = { ...named, archived: false, offset: 0, includeDerivedTitles: true };
    const [pinned, recent] = await Promise.all([
      call("sessions.list", { ...common, pinned: true, limit: MOST_PINNED }),
      call("sessions.list", { ...common, pinned: false, limit: size }),
    ]);
    if (mine !== turn) return;
    batch(() => {
      const rows = [...pinned.sessions, ...recent.sessions];
      const known = new Set(rows.map((row) => row.key));
      const others = [...running.value].filter((key) => !known.has(key));
      running.value = new Set([...others, ...rows.filter((row) => row.running).map((row) => row.key)]);
      conversations.value = { pinned: pinned.sessions, rows: recent.sessions, more: Boolean(recent.hasMore), loaded: true };
    });
    markRead();
  } catch (error) {
    if (error.code !== "DISCONNECTED") told(error);
  }
}

export function loadSoon() {
  clearTimeout(timer);
  timer = setTimeout(load, RELOAD_MS);
}

export function showMore() {
  size += STEP;
  load();
}

export function shownRows({ pinned, rows }) {
  const stays = (row) => !removed.value.has(row.key) && !row.spawnedBy;
  return { pinned: pinned.filter(stays), rows: rows.filter(stays) };
}

export function rowOf(key) {
  const { pinned, rows } = conversations.value;
  return pinned.find((row) => row.key === key) || rows.find((row) => row.key === key);
}

// Which conversation is on the screen. What happens in it while it is seen is read.
export function setOpened(key) {
  if (opened.value === key) return;
  opened.value = key;
  markRead();
}

function markRead() {
  const row = rowOf(opened.value);
  if (!row || document.hidden || running.value.has(row.key) || (row.readAt ?? settings.value.since) >= (row.updatedAt || 0)) return;
  changeRow(row.key, { readAt: row.updatedAt });
  call("sessions.patch", { key: row.key, read: true }).catch(() => {});
}

function changeRow(key, fields) {
  const changed = (rows) => rows.map((row) => (row.key === key ? { ...row, ...fields } : row));
  const { pinned, rows, ...rest } = conversations.value;
  conversations.value = { ...rest, pinned: changed(pinned), rows: changed(rows) };
}

async function patch(key, fields, news, undo) {
  try {
    await call("sessions.patch", { key, ...fields });
    if (news) told(news, undo && { label: t("Undo"), run: () => patch(key, undo) });
    await load();
  } catch (error) {
    told(error);
  }
}

export const rename = (key, label) => patch(key, { label: label.trim() || null });
export const pin = (key, pinned) => patch(key, { pinned });
export const archive = (key, archived) => patch(key, { archived }, archived ? t("Archived") : "", { archived: !archived });

// Deletes after a while, in which it can be undone.
export function remove(key, title) {
  const finish = () => {
    forget(key);
    call("sessions.delete", { key }).then(loadSoon, told);
  };
  removed.value = new Map(removed.value).set(key, { timer: setTimeout(finish, UNDO_MS), finish });
  const undo = () => {
    clearTimeout(removed.value.get(key)?.timer);
    forget(key);
  };
  told(t("“{title}” was deleted", { title }), { label: t("Undo"), run: undo }, UNDO_MS);
}

function forget(key) {
  const left = new Map(removed.value);
  left.delete(key);
  removed.value = left;
}

addEventListener("pagehide", () => {
  for (const { timer: waits, finish } of removed.value.values()) {
    clearTimeout(waits);
    finish();
  }
});

// Agents with their names and faces

async function loadAgents() {
  try {
    const { agents: listed, defaultId } = await call("agents.list");
    const faces = await Promise.all(listed.map((one) => call("agent.identity.get", { agentId: one.id }).catch(() => ({}))));
    agents.value = { defaultId, list: listed.map((one, index) => ({ ...one, ...faces[index], id: one.id })) };
  } catch {
    /* After the next connect it is asked again. */
  }
}

connection.subscribe(({ phase }) => {
  if (phase !== "open") return;
  if (!settings.value.since) change({ since: Date.now() });
  loadAgents().then(load);
});
addEventListener("visibilitychange", () => !document.hidden && connection.value.phase === "open" && loadSoon());

gateway.on((event, payload) => {
  if (event === "agent" && payload.stream === "lifecycle" && payload.sessionKey) {
    const { phase } = payload.data;
    if (phase !== "start" && phase !== "end" && phase !== "error") return;
    const now = new Set(running.value);
    now[phase === "start" ? "add" : "delete"](payload.sessionKey);
    running.value = now;
    loadSoon();
  } else if (event === "chat" && payload.state !== "delta") loadSoon();
});
