// What the page remembers in this browser. Secrets are kept apart, in `secrets`.
import { signal } from "./dom.js";

const KEY = "openclaw.control.settings.v1";
const SECRET = "openclaw.control.secret";
const DEVICE_TOKEN = "openclaw.control.device-token";
// `since` is the first visit: what happened before it does not count as unread. `agentId` is empty while all are shown.
const DEFAULTS = { theme: "system", language: "", sessionKey: "", agentId: "", since: 0, showThinking: true, navCollapsed: false };

function read(storage, key) {
  try {
    return storage.getItem(key);
  } catch {
    return null; // A browser that forbids storage keeps nothing, and the page works all the same.
  }
}

function write(storage, key, value) {
  try {
    if (value === null || value === "") storage.removeItem(key);
    else storage.setItem(key, value);
  } catch {
    /* As above. */
  }
}

function stored() {
  try {
    const found = JSON.parse(read(localStorage, KEY) || "{}");
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

export const settings = signal({ ...DEFAULTS, ...stored() });

export function change(fields) {
  settings.value = { ...settings.value, ...fields };
  write(localStorage, KEY, JSON.stringify(settings.value));
}

// The Gateway's own secret lives as long as the tab. A device token is good for this browser alone and stays.
export const secrets = {
  get shared() {
    return read(sessionStorage, SECRET) || "";
  },
  set shared(value) {
    write(sessionStorage, SECRET, value);
  },
  get device() {
    return read(localStorage, DEVICE_TOKEN) || "";
  },
  set device(value) {
    write(localStorage, DEVICE_TOKEN, value);
  },
};

// A draft outlives a reload and a restart of the browser.
export function draft(sessionKey, text) {
  const key = `openclaw.control.draft:${sessionKey}`;
  if (text === undefined) return read(localStorage, key) || "";
  write(localStorage, key, text);
  return text;
}

// `openclaw dashboard` opens the page with #ticket=…, which stands for the secret once. An address with #token=… works
// too. Both are taken once and wiped, and neither leaves the browser with a request for a page.
export async function signInFromAddress() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const ticket = fields.get("ticket");
  const token = fields.get("token") || fields.get("password");
  if (ticket === null && token === null) return;
  for (const name of ["ticket", "token", "password"]) fields.delete(name);
  const rest = fields.toString();
  history.replaceState(history.state, "", location.pathname + location.search + (rest ? `#${rest}` : ""));
  const secret = token || (ticket && (await redeemed(ticket)));
  if (secret) {
    secrets.shared = secret;
    secrets.device = "";
  }
}

// A ticket that is used or too old leaves the page as it was: signed in already, or asking for the token.
async function redeemed(ticket) {
  try {
    const answer = await fetch("/__openclaw__/sign-in", { method: "POST", body: JSON.stringify({ ticket }) });
    return answer.ok ? (await answer.json()).secret : "";
  } catch {
    return "";
  }
}

function applyTheme() {
  const { theme } = settings.value;
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

settings.subscribe(applyTheme);
