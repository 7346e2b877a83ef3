// Requests to the server this page comes from.

export class ServerError extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

let key = "";

export function useKey(value) {
  key = value;
}

export async function get(path) {
  return answer(await fetch(path, { headers: headers() }));
}

export async function post(path, body, type) {
  return answer(await fetch(path, { method: "POST", body, headers: { ...headers(), "content-type": type } }));
}

// Runs a function with the latest arguments only: what comes while it is busy replaces what waits. Where the function
// returns seconds, it runs again after them, unless something newer waits.
export function latestOnly(run) {
  let waiting = null;
  let busy = false;
  return async (...args) => {
    waiting = args;
    if (busy) return;
    busy = true;
    while (waiting !== null) {
      const next = waiting;
      waiting = null;
      const seconds = await run(...next);
      if (seconds) {
        await new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
        waiting ??= next;
      }
    }
    busy = false;
  };
}

function headers() {
  return key ? { authorization: `Bearer ${key}` } : {};
}

async function answer(response) {
  const document = await response.json().catch(() => ({}));
  if (response.ok) return document;
  const seconds = Number(response.headers.get("retry-after")) || 0;
  throw new ServerError(response.status, document.error ?? `The server answered ${response.status}.`, seconds);
}
