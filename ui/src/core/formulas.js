// Formulas, set by KaTeX. It makes elements, so nothing in a formula is read as HTML. Loaded with the first formula.
import katex from "katex";
import { base } from "./gateway.js";

const MOST_EXPANSIONS = 200;
let styled = false;

export function typeset(node) {
  if (!styled) {
    styled = true;
    const link = document.createElement("link");
    link.rel = "stylesheet";
    link.href = `${base}/${MATH_STYLE}`;
    document.head.append(link);
  }
  const source = node.textContent;
  node.dataset.set = "";
  try {
    katex.render(source, node, { displayMode: node.classList.contains("math-block"), throwOnError: true, trust: false, strict: "ignore", maxSize: 20, maxExpand: MOST_EXPANSIONS });
  } catch {
    node.textContent = source; // What is no formula stays the text that it was.
  }
}
