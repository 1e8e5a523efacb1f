// The page's one connection to the Gateway: it signs in, calls methods, hears events, and comes back after a break.
import { signal } from "./dom.js";
import { deviceIdentity, signedDevice } from "./device.js";
import { secrets } from "./settings.js";
import { t } from "./words.js";

const CLIENT = { id: "openclaw-control-ui", version: "1", platform: "web", mode: "webchat" };
const CAPS = ["tool-events", "delta-events", "tool-output"];
const SCOPES = ["operator.admin", "operator.approvals", "operator.pairing"];
const FIRST_PAUSE_MS = 800;
const LONGEST_PAUSE_MS = 15_000;
const PAIRING_PAUSE_MS = 5_000;
const CALL_LIMIT_MS = 120_000;

export class CallFailed extends Error {
  constructor({ code = "UNAVAILABLE", message = "", details = null } = {}) {
    super(message);
    this.code = code;
    this.details = details;
  }
}

// phase: starting, open, waiting (comes back by itself), signedOut (needs a token), pairing, refused.
export const connection = signal({ phase: "starting", problem: "", hello: null });

export const base = document.querySelector('meta[name="openclaw-base"]')?.content || "";

function socketUrl() {
  return `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${base}/`;
}

class Gateway {
  #socket = null;
  #pause = FIRST_PAUSE_MS;
  #timer = 0;
  #alive = 0;
  #number = 0;
  #calls = new Map();
  #listeners = new Set();
  #lastSeq = null;
  #epoch = null;

  // Begins, or begins again at once, for example with another token.
  connect() {
    clearTimeout(this.#timer);
    this.#pause = FIRST_PAUSE_MS;
    this.#open();
  }

  signIn(secret) {
    secrets.shared = secret;
    secrets.device = "";
    this.connect();
  }

  signOut() {
    secrets.shared = "";
    secrets.device = "";
    this.#leave({ phase: "signedOut", problem: "" });
  }

  // Hears every event as (name, payload, seq). Returns the function that ends it.
  on(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  call(method, params = {}) {
    const socket = this.#socket;
    if (!socket || connection.value.phase !== "open") {
      return Promise.reject(new CallFailed({ code: "DISCONNECTED", message: t("the Gateway is not connected") }));
    }
    return this.#request(socket, method, params);
  }

  #request(socket, method, params) {
    const id = `r${++this.#number}`;
    const frame = JSON.stringify({ type: "req", id, method, params });
    // The Gateway would close the connection, and a message that is sent again after that would close it again.
    if (new Blob([frame]).size > (connection.value.hello?.policy.maxPayload ?? 524_288)) {
      return Promise.reject(new CallFailed({ code: "INVALID_REQUEST", message: t("This is too long to be sent at once.") }));
    }
    return new Promise((resolve, reject) => {
      const limit = setTimeout(() => {
        this.#calls.delete(id);
        reject(new CallFailed({ code: "AGENT_TIMEOUT", message: `${method} was not answered` }));
      }, CALL_LIMIT_MS);
      this.#calls.set(id, { resolve, reject, limit, socket });
      socket.send(frame);
    });
  }

  #open() {
    this.#drop();
    const socket = (this.#socket = new WebSocket(socketUrl()));
    socket.onmessage = (message) => socket === this.#socket && this.#take(socket, message.data);
    socket.onclose = (event) => {
      this.#failCalls(socket, "the connection was lost");
      if (socket === this.#socket) this.#again(event.code === 1012 ? 300 : this.#pause);
    };
  }

  #drop() {
    const old = this.#socket;
    this.#socket = null;
    if (old) {
      this.#failCalls(old, "the connection was closed");
      old.close();
    }
  }

  #leave(state) {
    clearTimeout(this.#timer);
    clearTimeout(this.#alive);
    this.#drop();
    connection.value = { hello: connection.value.hello, problem: "", ...state };
  }

  #again(pause, phase = "waiting", problem = "") {
    clearTimeout(this.#alive);
    clearTimeout(this.#timer);
    connection.value = { hello: connection.value.hello, phase, problem };
    this.#pause = Math.min(this.#pause * 1.7, LONGEST_PAUSE_MS);
    this.#timer = setTimeout(() => this.#open(), pause + Math.random() * 200);
  }

  #failCalls(socket, message) {
    for (const [id, call] of this.#calls) {
      if (call.socket !== socket) continue;
      this.#calls.delete(id);
      clearTimeout(call.limit);
      call.reject(new CallFailed({ code: "DISCONNECTED", message }));
    }
  }

  #take(socket, data) {
    const frame = JSON.parse(data);
    if (frame.type === "res") {
      const call = this.#calls.get(frame.id);
      if (!call) return;
      this.#calls.delete(frame.id);
      clearTimeout(call.limit);
      if (frame.ok) call.resolve(frame.payload);
      else call.reject(new CallFailed(frame.error || {}));
    } else if (frame.event === "connect.challenge") {
      this.#shakeHands(socket, frame.payload.nonce);
    } else {
      this.#heard();
      if (typeof frame.seq === "number") this.#lastSeq = frame.seq;
      for (const listener of this.#listeners) listener(frame.event, frame.payload ?? {}, frame.seq);
    }
  }

  async #shakeHands(socket, nonce) {
    const identity = await deviceIdentity();
    const secret = secrets.shared || (identity ? secrets.device : "");
    if (!secret) {
      this.#leave({ phase: "signedOut" });
      return;
    }
    const params = { minProtocol: 3, maxProtocol: 3, client: CLIENT, role: "operator", scopes: SCOPES, caps: CAPS };
    params.auth = { token: secret, password: secret };
    params.locale = navigator.language;
    params.userAgent = navigator.userAgent;
    if (identity) {
      const asked = { client: CLIENT, role: "operator", scopes: SCOPES, token: secret, nonce };
      params.device = await signedDevice(identity, asked);
    }
    if (this.#lastSeq !== null) Object.assign(params, { lastSeq: this.#lastSeq, epoch: this.#epoch });
    try {
      this.#welcome(await this.#request(socket, "connect", params));
    } catch (error) {
      if (socket === this.#socket) this.#refused(error);
    }
  }

  #welcome(hello) {
    const known = this.#epoch;
    this.#epoch = hello.server.epoch;
    if (known !== this.#epoch || this.#lastSeq === null) this.#lastSeq = hello.server.seq;
    if (hello.auth?.deviceToken) {
      secrets.device = hello.auth.deviceToken;
      secrets.shared = "";
    }
    this.#pause = FIRST_PAUSE_MS;
    this.#tick = hello.policy.tickIntervalMs;
    this.#heard();
    connection.value = { phase: "open", problem: "", hello };
  }

  #tick = 30_000;

  // A connection over which nothing comes, not even the tick, is dead although nobody has closed it.
  #heard() {
    clearTimeout(this.#alive);
    this.#alive = setTimeout(() => this.#socket?.close(4000, "tick timeout"), this.#tick * 2.5);
  }

  #refused(error) {
    if (error.code === "DISCONNECTED") return;
    const problem = error.message;
    if (error.code === "NOT_PAIRED" && error.details?.requestId) {
      this.#drop();
      this.#again(PAIRING_PAUSE_MS, "pairing", error.details.requestId);
    } else if (/^unauthorized|device identity required/.test(problem)) {
      const wasShared = Boolean(secrets.shared);
      secrets.shared = "";
      secrets.device = "";
      this.#leave({ phase: "signedOut", problem: wasShared ? problem : "" });
    } else {
      this.#leave({ phase: "refused", problem });
    }
  }
}

export const gateway = new Gateway();
export const call = (method, params) => gateway.call(method, params);
