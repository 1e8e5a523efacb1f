// The frame of the page: navigation, sign-in, the state of the connection, and the page that the address names.
import { html, render, useEffect, useState } from "./core/dom.js";
import { approvals } from "./core/approvals.js";
import { connection, gateway } from "./core/gateway.js";
import { address, route } from "./core/router.js";
import { change, settings, signInFromAddress } from "./core/settings.js";
import { LANGUAGES, language, t } from "./core/words.js";
import { Empty, Icon, Notice, Toasts } from "./parts/basics.js";
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

function Navigation({ open, close }) {
  const { page, query } = route.value;
  const { phase } = connection.value;
  return html`<nav class=${open ? "side open" : "side"} aria-label=${t("Pages")}>
    <div class="brand"><img src="${address("favicon.svg")}" alt="" width="26" height="26" /><strong>OpenClaw</strong></div>
    <ul>${PAGES.map((one) => html`<li key=${one.path}>
      <a href=${address(one.path, query.session ? { session: query.session } : {})} onClick=${close}
        aria-current=${one.path === page ? "page" : undefined}><${Icon} name=${one.icon} /><span>${t(one.name)}</span>${one.path === "approvals" && approvals.value.length > 0 ? html`<span class="badge" aria-hidden="true">${approvals.value.length}</span>` : ""}</a>
    </li>`)}</ul>
    <div class="side-foot">
      <p class="link-state ${phase}" role="status">${phase === "open" ? t("Connected") : t("Reconnecting…")}</p>
      <label><span>${t("Theme")}</span>
        <select value=${settings.value.theme} onChange=${(event) => change({ theme: event.target.value })}>
          <option value="system">${t("System")}</option><option value="light">${t("Light")}</option><option value="dark">${t("Dark")}</option>
        </select></label>
      <label><span>${t("Language")}</span>
        <select value=${language.value} onChange=${(event) => change({ language: event.target.value })}>
          ${Object.entries(LANGUAGES).map(([code, name]) => html`<option key=${code} value=${code}>${name}</option>`)}
        </select></label>
      <button class="quiet" onClick=${() => gateway.signOut()}>${t("Sign out")}</button>
    </div>
  </nav>`;
}

function App() {
  const { phase, hello } = connection.value;
  const [open, setOpen] = useState(false);
  const { page } = route.value;
  const found = PAGES.find((one) => one.path === page);
  const title = found ? t(found.name) : "OpenClaw";
  useEffect(() => {
    document.title = found ? `${title} · OpenClaw` : title;
  }, [title]);
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
    </header>
    <${Navigation} open=${open} close=${() => setOpen(false)} />
    ${open && html`<div class="shade" onClick=${() => setOpen(false)}></div>`}
    <main id="content" tabindex="-1" class="page-${page}">
      ${View ? html`<${View} key=${page} />` : html`<${Empty}>${t("There is no such page.")}<//>`}
    </main>
    <${Toasts} />
  </div>`;
}

addEventListener("hashchange", async () => {
  const before = location.hash;
  await signInFromAddress();
  if (before !== location.hash) gateway.connect();
});
signInFromAddress().then(() => gateway.connect());
render(html`<${App} />`, document.getElementById("app"));
