// The face of an agent: its picture, its emoji, or a sign made from its name.
import { html } from "../core/dom.js";
import { base } from "../core/gateway.js";

const PICTURE = /\.(png|jpe?g|gif|webp)$/i;

function hueOf(text) {
  let hash = 0;
  for (const one of text) hash = (hash * 31 + one.codePointAt(0)) >>> 0;
  return hash % 360;
}

export function Face({ agent, size = "" }) {
  const { id = "main", name = "", avatar = "", emoji = "" } = agent || {};
  if (PICTURE.test(avatar) && !/^https?:/i.test(avatar)) return html`<img class="face ${size}" src="${base}/avatar/${id}" alt="" />`;
  if (avatar.startsWith("data:image/")) return html`<img class="face ${size}" src=${avatar} alt="" />`;
  const sign = emoji || (/\p{Extended_Pictographic}/u.test(avatar) ? avatar : "");
  if (sign) return html`<span class="face emoji ${size}" aria-hidden="true">${sign}</span>`;
  return html`<span class="face made ${size}" aria-hidden="true" style=${{ "--hue": hueOf(id + name) }}>${([...(name || id).trim()][0] || "·").toUpperCase()}</span>`;
}
