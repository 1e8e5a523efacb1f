// The frame of the page: navigation, sign-in, the state of the connection, and the page that the address names.
import { html, render, useEffect, useState } from "./core/dom.js";
import "./core/approvals.js";
import { newKey, rowOf, titleOf } from "./core/conversations.js";
import { base, connection, gateway } from "./core/gateway.js";
import { address, go, route } from "./core/router.js";
import { settings, signInFromAddress } from "./core/settings.js";
import { t } from "./core/words.js";
import { Empty, Icon, Notice, Toasts } from "./parts/basics.js";
import { Palette } from "./parts/palette.js";
import { Sidebar } from "./parts/sidebar.js";
import { PAGES } from "./pages/index.js";
import "./style.css";

function SignIn() {
  const [secret, setSecret] = useState("");
  const { problem } = connection.value;
  const submit = (event) => {
    event.preventDefault();
    if (secret.trim()) gateway.signIn(secret.trim());
  };
  return html`<main class="gate" id="content">
    <form class="card" onSubmit=${submit}>
      <h1>${t("Sign in to your Gateway")}</h1>
      ${problem && html`<${Notice} kind="error">${problem.includes(" mismatch") ? t("The Gateway has another token.") : problem}<//>`}
      <label class="field"><span>${t("Gateway token")}</span>
        <input type="password" name="token" autocomplete="current-password" value=${secret} autofocus
          onInput=${(event) => setSecret(event.target.value)} />
      </label>
      <button class="primary" type="submit">${t("Sign in")}</button>
      <p class="hint">${t("The token stays in this browser tab. On the Gateway's machine `openclaw dashboard` opens this page signed in.")}</p>
    </form>
  </main>`;
}

function Waiting() {
  const { phase, problem } = connection.value;
  return html`<main class="gate" id="content"><div class="card">
    ${phase === "pairing" && html`<h1>${t("This browser waits for approval")}</h1>
      <p>${t("Approve it on the Gateway's machine:")}</p>
      <pre tabindex="0"><code>openclaw devices approve ${problem}</code></pre>`}
    ${phase === "refused" && html`<h1>${t("The Gateway refused this page")}</h1>
      <${Notice} kind="error">${problem}<//>
      <button class="primary" onClick=${() => gateway.connect()}>${t("Try again")}</button>`}
    ${phase !== "pairing" && phase !== "refused" && html`<h1>OpenClaw</h1><p class="hint">${t("Connecting…")}</p>`}
  </div></main>`;
}

function App() {
  const { phase, hello } = connection.value;
  const [open, setOpen] = useState(false);
  const [palette, setPalette] = useState(false);
  const { page, query } = route.value;
  const found = PAGES.find((one) => one.path === page);
  const title = page === "chat" ? titleOf(rowOf(query.session || settings.value.sessionKey) || { key: query.session }) : found ? t(found.name) : "OpenClaw";
  useEffect(() => {
    document.title = found ? `${title} · OpenClaw` : title;
  }, [title]);
  useEffect(() => {
    const key = (event) => {
      if (event.key === "Escape" && open) setOpen(false);
      if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
      event.preventDefault();
      setPalette(true);
    };
    addEventListener("keydown", key);
    return () => removeEventListener("keydown", key);
  }, [open]);
  if (phase === "signedOut") return html`<${SignIn} />`;
  // Once signed in, the view stays while the connection is away.
  if (!hello || phase === "pairing" || phase === "refused") return html`<${Waiting} />`;
  const View = found?.view;
  return html`<div class="frame">
    <a class="skip" href="#content" onClick=${(event) => {
      event.preventDefault();
      document.getElementById("content")?.focus();
    }}>${t("Skip to content")}</a>
    <header class="top">
      <button class="icon-button" aria-label=${t("Menu")} aria-expanded=${open} onClick=${() => setOpen(!open)}><${Icon} name="menu" /></button>
      <strong>${title}</strong>
      ${phase !== "open" && html`<span class="away">${t("Reconnecting…")}</span>`}
      <button class="icon-button" aria-label=${t("Start a new chat")} onClick=${() => (setOpen(false), go("chat", { session: newKey() }))}><${Icon} name="compose" /></button>
    </header>
    <${Sidebar} open=${open} close=${() => setOpen(false)} openPalette=${() => setPalette(true)} />
    ${open && html`<div class="shade" onClick=${() => setOpen(false)}></div>`}
    <main id="content" tabindex="-1" class="page-${page}">
      ${View ? html`<${View} key=${page} />` : html`<${Empty}>${t("There is no such page.")}<//>`}
    </main>
    ${palette && html`<${Palette} onClose=${() => setPalette(false)} />`}
    <${Toasts} />
  </div>`;
}

addEventListener("hashchange", async () => {
  const before = location.hash;
  await signInFromAddress();
  if (before !== location.hash) gateway.connect();
});
signInFromAddress().then(() => gateway.connect());
// The shell opens without the Gateway once it is installed. Browsers allow that on safe addresses only.
if (isSecureContext && navigator.serviceWorker) addEventListener("load", () => navigator.serviceWorker.register(`${base}/sw.js`).catch(() => {}));
render(html`<${App} />`, document.getElementById("app"));
