// Which page is shown. The address is <base>/<page>?session=…, so that every view can be linked and reloaded.
import { signal } from "./dom.js";
import { base } from "./gateway.js";

// Addresses of earlier versions that people may have kept.
const RENAMED = { config: "settings" };

function read() {
  const path = location.pathname.slice(base.length).replace(/^\/+|\/+$/g, "");
  return { page: RENAMED[path] || path || "chat", query: Object.fromEntries(new URLSearchParams(location.search)) };
}

export const route = signal(read());

export function address(page, query = {}) {
  const fields = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const search = new URLSearchParams(fields).toString().replaceAll("%3A", ":");
  return `${base}/${page}${search ? `?${search}` : ""}`;
}

export function go(page, query = {}, { replace = false } = {}) {
  const to = address(page, query);
  if (to !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"]({}, "", to);
  route.value = read();
}

addEventListener("popstate", () => (route.value = read()));

// Links of the page change the view without a reload. Other clicks (new tab, other site) are the browser's.
addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || link.target || link.origin !== location.origin || event.defaultPrevented) return;
  if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (!link.pathname.startsWith(`${base}/`)) return;
  event.preventDefault();
  history.pushState({}, "", link.pathname + link.search);
  route.value = read();
});
