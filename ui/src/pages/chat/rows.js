// Makes the rows that people see from stored messages and the run under way: what one side said in a stretch is one
// row, and a tool call and its result are one part of it.
import { textOf } from "./conversation.js";

const MOST_PARTS = 40;

export function rowsOf(messages, run) {
  const rows = [];
  const calls = new Map();
  const live = new Map((run?.items || []).filter((one) => one.kind === "tool").map((one) => [one.id, one]));
  for (const message of messages) {
    const { id, kind } = message.__openclaw;
    if (message.role === "user") rows.push({ key: id, side: "me", message, at: message.timestamp });
    else if (message.role === "system") rows.push({ key: id, side: "mark", kind, text: textOf(message), at: message.timestamp });
    else if (message.role === "assistant") addParts(rows, message, calls, live);
    else if (message.role === "toolResult") addResult(rows, message, calls, id);
  }
  if (run) addLive(rows, run, live);
  return rows;
}

function agentRow(rows, key, at) {
  const last = rows[rows.length - 1];
  if (last?.side === "agent" && last.parts.length < MOST_PARTS) return last;
  const row = { key, side: "agent", parts: [], at, follows: last?.side === "agent" };
  rows.push(row);
  return row;
}

function addParts(rows, message, calls, live) {
  const row = agentRow(rows, message.__openclaw.id, message.timestamp);
  row.id = message.__openclaw.id;
  const fromGateway = message.model === "gateway-injected";
  // An attempt that failed and was made again is no news any more.
  if (!fromGateway && row.parts.at(-1)?.kind === "error") row.parts.pop();
  for (const block of message.content) {
    if (block.type === "text" && block.text.trim()) row.parts.push({ kind: "text", text: block.text, notice: message.notice || fromGateway });
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
  (message.mediaUrls || []).forEach((address, index) => row.parts.push({ kind: "file", address, index, entryId: message.__openclaw.id }));
  if (message.stopReason === "error" && message.errorMessage) row.parts.push({ kind: "error", text: message.errorMessage });
  if (message.model && !fromGateway && message.model !== "delivery-mirror") row.model = message.model;
}

function addResult(rows, message, calls, id) {
  let part = calls.get(message.toolCallId);
  if (!part) {
    part = { kind: "tool", id: message.toolCallId, name: message.toolName, arguments: {} };
    agentRow(rows, id, message.timestamp).parts.push(part);
  }
  part.output = textOf(message);
  part.omitted = message.content.some((one) => one.omitted) ? id : null;
  part.state = message.isError ? "failed" : "done";
}

function addLive(rows, run, live) {
  if (run.said) rows.push({ key: `said-${run.runId}`, side: "me", said: run.said, at: run.startedAt });
  const items = run.items.filter((one) => one.kind !== "tool" || live.has(one.id));
  const last = rows[rows.length - 1];
  // A row that shows the run goes on; the one that follows an answer of before does not.
  const row = last?.side === "agent" && last.parts.some((one) => one.kind === "tool") ? last : null;
  const target = row || { key: `run-${run.runId}`, side: "agent", parts: [], at: run.startedAt };
  if (!row) rows.push(target);
  target.parts = [...target.parts, ...items];
  target.running = true;
}
