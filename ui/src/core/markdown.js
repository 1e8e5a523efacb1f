// Markdown as elements, while it streams in. The parser's tokens become elements and text nodes here, and no HTML is
// ever read, so a tag in the text is text. Links go where their text may send people: web, mail, nothing else. Pictures
// are shown as links, because loading one would tell its server who reads what.
import MarkdownIt from "markdown-it";
import footnotes from "markdown-it-footnote";
import { html, useLayoutEffect, useRef, useState } from "./dom.js";
import { mathRules } from "./math.js";
import { t } from "./words.js";

const SCHEMES = /^(https?:|mailto:)/i;
const PICTURE_DATA = /^data:image\/(png|jpeg|gif|webp);base64,/i;
const LONGEST = 60_000;
const MOST_NESTING = 60;

export function safeLink(href) {
  try {
    const url = new URL(href, "invalid://x");
    return SCHEMES.test(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const parser = new MarkdownIt({ html: false, linkify: true, breaks: false, maxNesting: MOST_NESTING }).use(footnotes).use(mathRules);
// Names such as README.md are no addresses. What begins with http:, mailto: or www. is one.
parser.linkify.set({ fuzzyLink: false, fuzzyIP: false, fuzzyEmail: true });
parser.linkify.add("www.", {
  validate: (text, at) => /^[\w-]+(\.[\w-]+)+([/?#][^\s<]*)?/.exec(text.slice(at))?.[0].replace(/[.,:;!?)\]'"]+$/, "").length || 0,
  normalize: (match) => (match.url = `https://${match.url}`),
});
parser.validateLink = () => true; // Every link becomes an element with its text; `safeLink` decides whether it leads anywhere.

const make = (name, className) => {
  const made = document.createElement(name);
  if (className) made.className = className;
  return made;
};

// Turns the tokens of one top-level block into a node.
class Painter {
  constructor(env, level) {
    this.env = env;
    this.level = level; // The level of the last heading, in an array, because all blocks of a message share it.
  }

  paint(tokens, source) {
    const root = make("div");
    if (tokens === null) {
      const plain = make("div", "plain");
      plain.textContent = source;
      return [plain];
    }
    this.stack = [root];
    for (const token of tokens) this.block(token);
    return [...root.childNodes];
  }

  get parent() {
    return this.stack[this.stack.length - 1];
  }

  open(node, inside = node) {
    this.parent.append(node);
    this.stack.push(inside);
  }

  block(token) {
    const { type, tag, nesting } = token;
    if (type === "inline") return this.inline(token.children, this.parent);
    if (type === "fence" || type === "code_block") return this.parent.append(codeBlock(token.content, token.info));
    if (type === "math_block") return this.parent.append(mathNode(token.content, true));
    if (type === "hr") return this.parent.append(make("hr"));
    if (type === "footnote_anchor") return undefined;
    if (nesting === -1) {
      if (!token.hidden) this.stack.pop();
      return undefined;
    }
    if (nesting === 0 || token.hidden) return undefined;
    if (type === "heading_open") return this.open(this.heading(Number(tag[1])));
    if (type === "table_open") {
      // A wide table scrolls by itself. What scrolls must be reachable with the keyboard.
      const frame = make("div", "table-frame");
      frame.tabIndex = 0;
      const table = make("table");
      frame.append(table);
      return this.open(frame, table);
    }
    if (type === "footnote_block_open") {
      const section = make("section", "footnotes");
      const list = make("ol");
      section.append(list);
      return this.open(section, list);
    }
    if (type === "footnote_open") {
      const item = make("li");
      item.dataset.note = String(token.meta.id + 1);
      item.tabIndex = -1;
      return this.open(item);
    }
    const node = make(/^(p|ul|ol|li|blockquote|thead|tbody|tr|th|td)$/.test(tag) ? tag : "div");
    if (type === "ordered_list_open" && token.attrGet("start")) node.start = Number(token.attrGet("start")) || 1;
    const align = /text-align:(right|center)/.exec(token.attrGet("style") || "");
    if (align) node.className = `align-${align[1]}`;
    return this.open(node);
  }

  // The page's own heading is the first level, and no level below it may be left out. The look is the author's.
  heading(wanted) {
    this.level[0] = Math.min(wanted + 1, this.level[0] + 1, 6);
    return make(`h${this.level[0]}`, `level-${wanted}`);
  }

  inline(children, root) {
    const stack = [root];
    const put = (node) => stack[stack.length - 1].append(node);
    const task = /^\[([ xX])\](?:\s|$)/.exec(children[0]?.type === "text" ? children[0].content : "");
    const item = task && (root.tagName === "LI" ? root : root.parentElement?.tagName === "LI" && !root.previousSibling ? root.parentElement : null);
    if (item) {
      item.className = "task";
      const box = make("input");
      box.type = "checkbox";
      box.disabled = true;
      box.checked = task[1] !== " ";
      box.setAttribute("aria-label", box.checked ? t("done") : t("open"));
      put(box);
    }
    children.forEach((token, index) => {
      const text = item && index === 0 ? token.content.slice(task[0].length) : token.content;
      switch (token.type) {
        case "text": return put(document.createTextNode(text));
        case "code_inline": {
          const code = make("code");
          code.textContent = text;
          return put(code);
        }
        case "softbreak": return put(document.createTextNode("\n"));
        case "hardbreak": return put(make("br"));
        case "math_inline": return put(mathNode(text, false));
        case "image": return put(this.picture(token));
        case "footnote_ref": {
          const number = String(token.meta.id + 1);
          const mark = make("sup");
          const button = make("button", "note-ref");
          button.type = "button";
          button.textContent = number;
          button.setAttribute("aria-label", t("Footnote {n}", { n: number }));
          button.addEventListener("click", () => {
            const note = button.closest(".markdown")?.querySelector(`[data-note="${number}"]`);
            note?.scrollIntoView({ block: "nearest" });
            note?.focus();
          });
          mark.append(button);
          return put(mark);
        }
        case "link_open": {
          const link = make("a");
          lead(link, token.attrGet("href"));
          put(link);
          return stack.push(link);
        }
        case "strong_open": case "em_open": case "s_open": {
          const node = make({ strong_open: "strong", em_open: "em", s_open: "del" }[token.type]);
          put(node);
          return stack.push(node);
        }
        case "link_close": case "strong_close": case "em_close": case "s_close": return stack.pop();
        default: return text ? put(document.createTextNode(text)) : undefined;
      }
    });
  }

  picture(token) {
    const source = token.attrGet("src") || "";
    if (PICTURE_DATA.test(source)) {
      const picture = make("img", "picture");
      picture.src = source;
      picture.alt = token.content;
      return picture;
    }
    const link = make("a", "picture-link");
    if (lead(link, source)) link.textContent = `🖼 ${token.content}`;
    else link.textContent = token.content;
    return link;
  }
}

function lead(link, address) {
  const href = safeLink(address || "");
  if (href === null) return false;
  link.href = href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  return true;
}

function codeBlock(content, info) {
  const language = info.trim().split(/\s+/)[0].slice(0, 40);
  const block = make("div", "code-block");
  const head = make("header");
  const name = make("span");
  name.textContent = language || t("Text");
  const copy = make("button");
  copy.type = "button";
  copy.textContent = t("Copy code");
  const text = content.replace(/\n$/, "");
  copy.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = t("Copied");
      setTimeout(() => (copy.textContent = t("Copy code")), 1500);
    } catch {
      copy.textContent = t("Could not copy");
    }
  });
  head.append(name, copy);
  const frame = make("pre");
  frame.tabIndex = 0;
  const code = make("code");
  if (language) code.dataset.language = language;
  code.textContent = text;
  frame.append(code);
  block.append(head, frame);
  return block;
}

function mathNode(content, block) {
  const node = make(block ? "div" : "span", block ? "math math-block" : "math");
  if (block) node.tabIndex = 0;
  node.textContent = content;
  return node;
}

// Colours and formulas come once a block is complete. What makes them is loaded when the first one is seen.
function finish(nodes) {
  const find = (what) => nodes.flatMap((node) => [...(node.matches(what) ? [node] : []), ...node.querySelectorAll(what)]);
  const codes = find("code[data-language]:not([data-coloured])");
  const formulas = find(".math:not([data-set])");
  if (codes.length) import("./highlight.js").then(({ colour }) => codes.forEach(colour), () => {});
  if (formulas.length) import("./formulas.js").then(({ typeset }) => formulas.forEach(typeset), () => {});
}

// Splits tokens into top-level blocks with the source of each.
function blocksOf(text, env) {
  const tokens = parser.parse(text, env);
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  const blocks = [];
  let depth = 0;
  let current = null;
  for (const token of tokens) {
    if (depth === 0) {
      const from = token.map ? (starts[token.map[0]] ?? text.length) : text.length;
      const to = token.map ? (starts[token.map[1]] ?? text.length) : text.length;
      current = { tokens: [], from, source: token.map ? text.slice(from, to) : JSON.stringify(tokens.slice(tokens.indexOf(token)).map((one) => one.content)) };
      blocks.push(current);
    }
    current.tokens.push(token);
    depth += token.nesting;
    if (token.level >= MOST_NESTING - 2) {
      // Nested deeper than the parser goes, which drops the rest. The text matters more than its form.
      current.source = text.slice(current.from);
      current.tokens = null;
      break;
    }
  }
  return blocks;
}

// Writes a growing text. Blocks that are complete are never parsed or made again; only the last one is, with what came.
class Writer {
  constructor(root) {
    this.root = root;
    this.blocks = [];
    this.begin();
  }

  // Another text, or the same with other spaces at its end. Blocks with the same source stay.
  begin() {
    this.text = "";
    this.done = 0; // The characters whose blocks are complete.
    this.kept = 0; // The number of those blocks.
  }

  write(text, ended) {
    if (!text.startsWith(this.text)) this.begin();
    if (text === this.text && !ended) return;
    this.text = text;
    // At the end everything is parsed once, because a reference or a footnote may be defined below its use.
    const from = ended ? 0 : this.done;
    const first = ended ? 0 : this.kept;
    const blocks = blocksOf(text.slice(from), {});
    const level = [this.blocks[first - 1]?.level ?? 1];
    const painter = new Painter({}, level);
    blocks.forEach((block, index) => {
      const known = this.blocks[first + index];
      const refers = ended && /\[/.test(block.source);
      if (known && known.source === block.source && !refers) {
        level[0] = known.level;
        return;
      }
      const nodes = painter.paint(block.tokens, block.source);
      if (known) known.nodes[0] ? known.nodes[0].before(...nodes) : this.root.append(...nodes);
      else this.root.append(...nodes);
      known?.nodes.forEach((node) => node.remove());
      this.blocks[first + index] = { source: block.source, nodes, level: level[0] };
    });
    for (const gone of this.blocks.splice(first + blocks.length)) gone.nodes.forEach((node) => node.remove());
    if (!ended && blocks.length > 1) {
      this.kept = first + blocks.length - 1;
      this.done = from + blocks[blocks.length - 1].from;
      for (const { nodes } of this.blocks.slice(first, this.kept)) finish(nodes);
    }
    if (ended) finish([this.root]);
  }
}

export function Markdown({ text, streaming = false }) {
  const root = useRef(null);
  const writer = useRef(null);
  const [whole, setWhole] = useState(false);
  const shown = whole || text.length <= LONGEST ? text : text.slice(0, LONGEST);
  useLayoutEffect(() => {
    writer.current ??= new Writer(root.current);
    try {
      writer.current.write(shown, !streaming);
    } catch {
      root.current.textContent = shown; // The text matters more than its form.
    }
  }, [shown, streaming]);
  return html`<div class="markdown" ref=${root} dir="auto"></div>
    ${shown !== text && html`<button class="quiet" onClick=${() => setWhole(true)}>${t("Show all")}</button>`}`;
}
