// Times, sizes and numbers as people read them.
import { language, t } from "./words.js";

export function time(ms) {
  return ms ? new Date(ms).toLocaleTimeString(language.value, { hour: "2-digit", minute: "2-digit" }) : "";
}

export function dateTime(ms) {
  if (!ms) return "";
  return new Date(ms).toLocaleString(language.value, { dateStyle: "medium", timeStyle: "short" });
}

export function ago(ms, now = Date.now()) {
  if (!ms) return "";
  const minutes = Math.floor((now - ms) / 60_000);
  if (minutes < 1) return t("just now");
  if (minutes < 60) return t("{n} min ago", { n: minutes });
  if (minutes < 48 * 60) return t("{n} h ago", { n: Math.floor(minutes / 60) });
  return t("{n} d ago", { n: Math.floor(minutes / 1440) });
}

// The heading under which something of this moment is listed.
export function dayOf(ms, now = new Date()) {
  const start = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  if (!ms) return t("Earlier");
  if (ms >= start) return t("Today");
  if (ms >= start - 86_400_000) return t("Yesterday");
  if (ms >= start - 7 * 86_400_000) return t("Previous 7 days");
  const date = new Date(ms);
  const form = date.getFullYear() === now.getFullYear() ? { month: "long" } : { month: "long", year: "numeric" };
  const name = date.toLocaleDateString(language.value, form);
  return name[0].toUpperCase() + name.slice(1);
}

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

export function count(value) {
  return typeof value === "number" ? value.toLocaleString(language.value) : "–";
}

// 12,345 as 12k: for tokens, where the last digits say nothing.
export function short(value) {
  if (typeof value !== "number") return "–";
  if (value < 1000) return String(value);
  if (value < 100_000) return `${(value / 1000).toFixed(1).replace(/\.0$/, "")}k`;
  return value < 1_000_000 ? `${Math.round(value / 1000)}k` : `${(value / 1_000_000).toFixed(1)}M`;
}

export function bytes(value) {
  if (value < 1024) return `${value} B`;
  return value < 1_048_576 ? `${(value / 1024).toFixed(1)} KB` : `${(value / 1_048_576).toFixed(1)} MB`;
}

export function money(value) {
  if (typeof value !== "number") return "–";
  return `$${value.toFixed(value && Math.abs(value) < 0.1 ? 4 : 2)}`;
}

export function clipped(text, limit) {
  return text.length <= limit ? text : `${text.slice(0, limit - 1)}…`;
}
