// Colours for code. The highlighter's tree becomes elements, so nothing in the code is read as HTML. Loaded with the
// first code that names its language.
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import csharp from "highlight.js/lib/languages/csharp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import kotlin from "highlight.js/lib/languages/kotlin";
import lua from "highlight.js/lib/languages/lua";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import nginx from "highlight.js/lib/languages/nginx";
import php from "highlight.js/lib/languages/php";
import powershell from "highlight.js/lib/languages/powershell";
import python from "highlight.js/lib/languages/python";
import r from "highlight.js/lib/languages/r";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import shell from "highlight.js/lib/languages/shell";
import sql from "highlight.js/lib/languages/sql";
import swift from "highlight.js/lib/languages/swift";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const LANGUAGES = {
  bash, c, cpp, csharp, css, diff, dockerfile, go, ini, java, javascript, json, kotlin, lua, makefile, markdown, nginx, php, powershell, python, r,
  ruby, rust, shell, sql, swift, typescript, xml, yaml,
};
for (const [name, language] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, language);
hljs.registerAliases(["toml"], { languageName: "ini" });

const LONGEST = 40_000;

// The emitter keeps the tree as it is, so that no HTML is made of it.
class Tree {
  constructor() {
    this.root = { children: [] };
    this.stack = [this.root];
  }

  get top() {
    return this.stack[this.stack.length - 1];
  }

  addText(text) {
    if (text) this.top.children.push(text);
  }

  openNode(scope) {
    const node = { scope, children: [] };
    this.top.children.push(node);
    this.stack.push(node);
  }

  closeNode() {
    if (this.stack.length > 1) this.stack.pop();
  }

  startScope(scope) {
    this.openNode(scope);
  }

  endScope() {
    this.closeNode();
  }

  __addSublanguage(emitter) {
    this.top.children.push({ scope: "", children: emitter.root.children });
  }

  finalize() {}

  toHTML() {
    return "";
  }
}
hljs.configure({ __emitter: Tree });

function nodesOf(children) {
  return children.map((child) => {
    if (typeof child === "string") return document.createTextNode(child);
    const span = document.createElement("span");
    if (child.scope) span.className = child.scope.split(".").map((part, index) => (index ? `${part}_` : `hl-${part}`)).join(" ");
    span.append(...nodesOf(child.children));
    return span;
  });
}

export function colour(code) {
  code.dataset.coloured = "";
  const language = code.dataset.language.toLowerCase();
  const text = code.textContent;
  if (!hljs.getLanguage(language) || text.length > LONGEST) return;
  const { _emitter: tree } = hljs.highlight(text, { language, ignoreIllegals: true });
  if (tree?.root) code.replaceChildren(...nodesOf(tree.root.children));
}
