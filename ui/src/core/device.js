// This browser's device identity: an Ed25519 key whose private half cannot be read, not even by this page.
const DATABASE = "openclaw-control";
const STORE = "identity";

export function toBase64Url(bytes) {
  return btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// Null where there is none: over plain HTTP from another machine, and in browsers without Ed25519.
export async function deviceIdentity() {
  if (!globalThis.crypto?.subtle || !globalThis.indexedDB) return null;
  try {
    const database = await opened();
    let keys = await done(database.transaction(STORE).objectStore(STORE).get("keys"));
    if (!keys) {
      const made = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
      const store = database.transaction(STORE, "readwrite").objectStore(STORE);
      // Another tab may have been faster. Both must use the same key.
      keys = await done(store.get("keys"));
      if (!keys) await done(store.put((keys = made), "keys"));
    }
    database.close();
    const raw = await crypto.subtle.exportKey("raw", keys.publicKey);
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", raw));
    const id = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
    return { id, publicKey: toBase64Url(raw), privateKey: keys.privateKey };
  } catch {
    return null;
  }
}

// The `device` of a connect request: who we are, signed together with what we ask for.
export async function signedDevice(identity, { client, role, scopes, token, nonce }) {
  const signedAt = Date.now();
  const text = ["v2", identity.id, client.id, client.mode, role, scopes.join(","), signedAt, token || "", nonce].join("|");
  const signature = await crypto.subtle.sign("Ed25519", identity.privateKey, new TextEncoder().encode(text));
  return { id: identity.id, publicKey: identity.publicKey, signature: toBase64Url(signature), signedAt, nonce };
}
