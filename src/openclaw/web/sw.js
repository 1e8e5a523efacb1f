// Stores the shell of the page, so that it opens while the Gateway is away. Only the page itself, its scripts, styles and
// fonts are stored: no answer of the Gateway, no conversation and no secret passes through here.
const SHELL = "openclaw-shell-1";
const base = new URL("./", location.href).pathname;
const PAGE = `${base}chat`;

self.addEventListener("install", () => self.skipWaiting());

async function openPage(request) {
  const cache = await caches.open(SHELL);
  try {
    const answer = await fetch(request);
    if (answer.ok && (answer.headers.get("content-type") || "").startsWith("text/html")) {
      const [known, fresh] = await Promise.all([cache.match(PAGE).then((one) => one?.text()), answer.clone().text()]);
      if (known !== fresh) {
        // Another build: what the old one needed goes.
        for (const key of await cache.keys()) await cache.delete(key);
        await cache.put(PAGE, new Response(fresh, { headers: answer.headers }));
      }
    }
    return answer;
  } catch (error) {
    const known = await cache.match(PAGE);
    if (known) return known;
    throw error;
  }
}

async function openFile(request) {
  const cache = await caches.open(SHELL);
  const known = await cache.match(request);
  if (known) return known;
  const answer = await fetch(request);
  if (answer.ok) await cache.put(request, answer.clone());
  return answer;
}

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== location.origin || !url.pathname.startsWith(base)) return;
  const path = url.pathname.slice(base.length);
  if (request.mode === "navigate" && !path.includes(".") && !path.startsWith("__openclaw__")) event.respondWith(openPage(request));
  // The names of these files hold a hash of their content.
  else if (/^(assets|chunks)\//.test(path)) event.respondWith(openFile(request));
});
