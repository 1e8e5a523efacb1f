// Formulas in Markdown: $…$ and \(…\) in a line, $$…$$ and \[…\] as a block. A price such as $5 is no formula.
const LONGEST = 4000;

function inlineRule(state, silent) {
  const { src, pos } = state;
  const double = src.startsWith("$$", pos);
  const [open, close] = src[pos] === "$" ? (double ? ["$$", "$$"] : ["$", "$"]) : src.startsWith("\\(", pos) ? ["\\(", "\\)"] : src.startsWith("\\[", pos) ? ["\\[", "\\]"] : [];
  if (!open) return false;
  const from = pos + open.length;
  let to = src.indexOf(close, from);
  while (to > 0 && close[0] === "$" && src[to - 1] === "\\") to = src.indexOf(close, to + 1);
  if (to <= from || to - from > LONGEST) return false;
  const content = src.slice(from, to);
  if (open === "$" && (/^\s|\s$/.test(content) || /\d/.test(src[to + 1] || "") || content.includes("\n\n"))) return false;
  if (!silent) state.push("math_inline", "span", 0).content = content.trim();
  state.pos = to + close.length;
  return true;
}

function blockRule(state, start, end, silent) {
  const line = (number) => state.src.slice(state.bMarks[number] + state.tShift[number], state.eMarks[number]);
  const first = line(start);
  const [open, close] = first.startsWith("$$") ? ["$$", "$$"] : first.startsWith("\\[") ? ["\\[", "\\]"] : [];
  if (!open) return false;
  const parts = [];
  for (let number = start; number < end; number += 1) {
    const text = number === start ? first.slice(open.length) : line(number);
    const at = text.indexOf(close);
    if (at >= 0) {
      if (text.slice(at + close.length).trim()) return false;
      if (silent) return true;
      parts.push(text.slice(0, at));
      const token = state.push("math_block", "div", 0);
      token.content = parts.join("\n").trim();
      token.map = [start, number + 1];
      state.line = number + 1;
      return true;
    }
    parts.push(text);
    if (parts.join("\n").length > LONGEST) return false;
  }
  return false;
}

export function mathRules(parser) {
  parser.inline.ruler.before("escape", "math_inline", inlineRule);
  parser.block.ruler.after("blockquote", "math_block", blockRule, { alt: ["paragraph", "reference", "blockquote", "list"] });
}
