// What the page asks the server, with the key of this tab.

const KEY = "paceline.key";
const TIMEOUT_MS = 8000;

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(KEY);
export const useKey = (value) => sessionStorage.setItem(KEY, value);

async function ask(path, options = {}) {
  const headers = { ...(options.body && { "Content-Type": "application/json" }) };
  if (key()) headers.Authorization = `Bearer ${key()}`;
  const response = await fetch(path, { ...options, headers, cache: "no-store" });
  if (!response.ok) throw new ServerError(response.status, await reason(response));
  return response;
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `HTTP ${response.status}`;
  }
}

async function json(path, options = {}) {
  return (await ask(path, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) })).json();
}

export const state = () => json("/api/state");
export const requests = () => json("/api/requests?limit=100");
export const allow = (mode) => json("/admin/speculation", { method: "POST", body: JSON.stringify({ mode }) });

/** Yields the objects of a stream of server-sent events, up to [DONE]. */
export async function* stream(path, body, signal) {
  const response = await ask(path, { method: "POST", body: JSON.stringify(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value.replaceAll("\r\n", "\n")).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = dataOf(part);
      if (data === "[DONE]") return;
      if (data) yield opened(JSON.parse(data));
    }
  }
}

function dataOf(part) {
  const lines = part.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}

function opened(chunk) {
  if (chunk.error) throw new ServerError(500, chunk.error.message);
  return chunk;
}
