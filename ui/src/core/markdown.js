// Markdown as elements, while it streams in. It makes elements and text nodes and never reads HTML, so a tag in the
// text is text. Links go where their text may send people: web, mail, nothing else. Pictures are shown as links,
// because loading one would tell its server who reads what.
import * as smd from "streaming-markdown";
import { html, useLayoutEffect, useRef, useState } from "./dom.js";
import { t } from "./words.js";

const SCHEMES = /^(https?:|mailto:)/i;
const LONGEST = 60_000;

export function safeLink(href) {
  try {
    const url = new URL(href, "invalid://x");
    return SCHEMES.test(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

// The page's own heading is the first level, and no level below it may be left out. The look is the author's.
function heading(data, type) {
  const wanted = type - smd.Token.Heading_1 + 1;
  data.level = Math.min(wanted + 1, (data.level || 1) + 1, 6);
  const made = document.createElement(`h${data.level}`);
  made.className = `level-${wanted}`;
  return made;
}

function add(data, type) {
  const parent = data.nodes[data.index];
  let slot = null;
  if (type === smd.Token.Image) {
    slot = document.createElement("a");
    slot.className = "picture-link";
  } else if (type === smd.Token.Checkbox) {
    slot = document.createElement("span");
    slot.textContent = "☐ ";
  } else if (type >= smd.Token.Heading_1 && type <= smd.Token.Heading_6) {
    slot = heading(data, type);
  } else if (type === smd.Token.Table) {
    // A wide table scrolls by itself. What scrolls must be reachable with the keyboard.
    const frame = parent.appendChild(document.createElement("div"));
    frame.className = "table-frame";
    frame.tabIndex = 0;
    data.nodes[++data.index] = frame.appendChild(document.createElement("table"));
    return;
  }
  if (slot === null) {
    smd.default_add_token(data, type);
    const made = data.nodes[data.index];
    if (type === smd.Token.Code_Fence || type === smd.Token.Code_Block) made.parentElement.tabIndex = 0;
    return;
  }
  data.nodes[++data.index] = parent.appendChild(slot);
}

function setAttribute(data, type, value) {
  const node = data.nodes[data.index];
  if (type === smd.Attr.Checked) node.textContent = "☑ ";
  else if (type === smd.Attr.Start) node.start = Number.parseInt(value, 10) || 1;
  else if (type === smd.Attr.Lang) node.dataset.language = value.slice(0, 40);
  else if (type === smd.Attr.Href || type === smd.Attr.Src) {
    const href = safeLink(value);
    if (href === null) return;
    node.href = href;
    node.target = "_blank";
    node.rel = "noopener noreferrer";
    if (!node.textContent && node.className === "picture-link") node.textContent = "🖼 ";
  }
}

function renderer(root) {
  const made = smd.default_renderer(root);
  return { ...made, add_token: add, set_attr: setAttribute };
}

class Writer {
  constructor(root) {
    this.root = root;
    this.begin();
  }

  begin() {
    this.root.replaceChildren();
    this.text = "";
    this.plain = false;
    this.parser = smd.parser(renderer(this.root));
  }

  write(text) {
    if (!text.startsWith(this.text)) this.begin();
    const more = text.slice(this.text.length);
    this.text = text;
    if (!more) return;
    try {
      if (!this.plain) smd.parser_write(this.parser, more);
    } catch {
      this.plain = true; // Nested deeper than the parser goes. The words matter more than their form.
    }
    if (this.plain) this.root.textContent = text;
  }

  end() {
    try {
      if (!this.plain) smd.parser_end(this.parser);
    } catch {
      this.plain = true;
    }
  }
}

export function Markdown({ text, streaming = false }) {
  const root = useRef(null);
  const writer = useRef(null);
  const [whole, setWhole] = useState(false);
  const shown = whole || text.length <= LONGEST ? text : text.slice(0, LONGEST);
  useLayoutEffect(() => {
    if (!writer.current || writer.current.ended) writer.current = new Writer(root.current);
    writer.current.write(shown);
    if (!streaming) {
      writer.current.end();
      writer.current.ended = true;
    }
  }, [shown, streaming]);
  return html`<div class="markdown" ref=${root} dir="auto"></div>
    ${shown !== text && html`<button class="quiet" onClick=${() => setWhole(true)}>${t("Show all")}</button>`}`;
}
