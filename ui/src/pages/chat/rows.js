// Makes the rows that people see from stored messages and the run under way: what one side said in a stretch is one
// row, and a tool call and its result are one part of it. Commands and their answers are rows of their own.
import { textOf } from "./conversation.js";

const MOST_PARTS = 40;
const ASKED = /^(?:\s*)\/[a-z]/i;

export function rowsOf(messages, run, extras = []) {
  const rows = [];
  const calls = new Map();
  const live = new Map((run?.items || []).filter((one) => one.kind === "tool").map((one) => [one.id, one]));
  // What was said beside a run that is still under way comes after what the run has said so far.
  const later = extras.filter((one) => run && one.timestamp > run.startedAt);
  for (const message of merged(messages, extras.filter((one) => !later.includes(one)))) add(rows, message, calls, live);
  if (run) addLive(rows, run, live);
  for (const message of later) add(rows, message, calls, live);
  return rows;
}

// Both lists are in order; the stored messages keep theirs.
function merged(messages, extras) {
  if (!extras.length) return messages;
  const all = [];
  let at = 0;
  for (const message of messages) {
    while (at < extras.length && extras[at].timestamp < message.timestamp) all.push(extras[at++]);
    all.push(message);
  }
  return [...all, ...extras.slice(at)];
}

function add(rows, message, calls, live) {
  const { id, kind } = message.__openclaw;
  if (message.role === "user") rows.push({ key: id, side: "me", message, at: message.timestamp, command: ASKED.test(textOf(message)) });
  else if (message.role === "system") rows.push({ key: id, side: "mark", kind, text: textOf(message), at: message.timestamp });
  else if (message.role === "assistant") addParts(rows, message, calls, live);
  else if (message.role === "toolResult") addResult(rows, message, calls, id);
}

// A run and what the transcript gets of it are one row, so that nothing is made again when the run ends.
const afterKey = (entryId) => entryId && `after-${entryId}`;

function agentRow(rows, key, at) {
  const last = rows[rows.length - 1];
  if (last?.side === "agent" && last.parts.length < MOST_PARTS) return last;
  const row = { key, side: "agent", parts: [], at, follows: last?.side === "agent" };
  rows.push(row);
  return row;
}

function addParts(rows, message, calls, live) {
  const { id } = message.__openclaw;
  const fromGateway = message.model === "gateway-injected" || message.notice;
  if (fromGateway) {
    const text = textOf(message);
    if (text.trim()) rows.push({ key: id, side: "gateway", text, at: message.timestamp });
    return;
  }
  const row = agentRow(rows, afterKey(message.__openclaw.parentId) || id, message.timestamp);
  row.id = id;
  row.endedAt = message.timestamp;
  // An attempt that failed and was made again is no news any more.
  if (row.parts.at(-1)?.kind === "error") row.parts.pop();
  for (const block of message.content) {
    if (block.type === "text" && block.text.trim()) row.parts.push({ kind: "text", text: block.text });
    else if (block.type === "thinking" && block.thinking.trim()) row.parts.push({ kind: "thinking", text: block.thinking });
    else if (block.type === "toolCall") {
      const part = { kind: "tool", id: block.id, name: block.name, arguments: block.arguments, output: "", state: "unknown" };
      const now = live.get(block.id);
      if (now) {
        Object.assign(part, now);
        live.delete(block.id);
      }
      calls.set(block.id, part);
      row.parts.push(part);
    }
  }
  (message.mediaUrls || []).forEach((address, index) => row.parts.push({ kind: "file", address, index, entryId: id }));
  if (message.stopReason === "error" && message.errorMessage) row.parts.push({ kind: "error", text: message.errorMessage });
  if (message.model && message.model !== "delivery-mirror") row.model = message.model;
  const { cost, tokens } = message.__openclaw;
  if (typeof cost === "number") row.cost = (row.cost || 0) + cost;
  if (typeof tokens === "number") row.tokens = (row.tokens || 0) + tokens;
}

function addResult(rows, message, calls, id) {
  let part = calls.get(message.toolCallId);
  if (!part) {
    part = { kind: "tool", id: message.toolCallId, name: message.toolName, arguments: {} };
    agentRow(rows, id, message.timestamp).parts.push(part);
  }
  part.output = textOf(message);
  part.omitted = message.content.some((one) => one.omitted) ? id : null;
  part.state = endOf(message.isError, part.output);
}

// How a tool ended, in the words of the questions that it may have asked.
export function endOf(failed, output) {
  if (!failed) return "done";
  if (/^(Denied|.{0,60}\bdenied\b)/i.test(output)) return "denied";
  if (/\b(expired|nobody answered|no answer in time)\b/i.test(output.slice(0, 200))) return "expired";
  if (/^(aborted|stopped|cancelled)\b/i.test(output)) return "stopped";
  return "failed";
}

function addLive(rows, run, live) {
  if (run.said) rows.push({ key: `said-${run.runId}`, side: "me", said: run.said, at: run.startedAt });
  const items = run.items.filter((one) => one.kind !== "tool" || live.has(one.id));
  const last = rows[rows.length - 1];
  // A row that shows the run goes on; the one that follows an answer of before does not.
  const row = last?.side === "agent" && (last.key === afterKey(run.askedId) || last.parts.some((one) => one.kind === "tool")) ? last : null;
  const target = row || { key: afterKey(run.askedId) || `run-${run.runId}`, side: "agent", parts: [], at: run.startedAt };
  if (!row) rows.push(target);
  target.parts = [...target.parts, ...items];
  target.running = true;
}
