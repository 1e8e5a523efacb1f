// The commands that wait for somebody's yes. Every page knows of them, because a run waits meanwhile.
import { signal } from "./dom.js";
import { call, connection, gateway } from "./gateway.js";

export const approvals = signal([]);

async function load() {
  try {
    approvals.value = (await call("exec.approval.list")).approvals;
  } catch {
    /* After the next connect it is asked again. */
  }
}

connection.subscribe(({ phase }) => phase === "open" && load());

gateway.on((event, payload) => {
  if (event === "exec.approval.requested") approvals.value = [...approvals.value.filter((one) => one.id !== payload.id), payload];
  else if (event === "exec.approval.resolved") approvals.value = approvals.value.filter((one) => one.id !== payload.id);
});

// A question that nobody answered in time is closed without an event.
setInterval(() => {
  const now = Date.now();
  const open = approvals.value.filter((one) => one.expiresAtMs > now);
  if (open.length !== approvals.value.length) approvals.value = open;
}, 1000);

export async function decide(id, decision) {
  const answer = await call("exec.approval.resolve", { id, decision });
  approvals.value = approvals.value.filter((one) => one.id !== id);
  return answer;
}
