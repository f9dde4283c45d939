// What the pages ask of their own server, and the address that holds what a viewer has chosen.

let session = null;

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function answered(response) {
  let body = null;
  try { body = await response.json(); } catch { /* an answer of something in between */ }
  // its key was revoked or has expired, or the session's time is over
  if (response.status === 401 && session?.is_open) dispatchEvent(new Event("signedout"));
  if (!response.ok) throw new ApiError(body?.error ?? `the server answers ${response.status}`, response.status);
  return body;
}

async function reached(address, options) {
  try {
    return await fetch(address, options);
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new ApiError("the server does not answer: is it still running?", 0);
  }
}

function address(path, query) {
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export async function get(path, query, signal) {
  return answered(await reached(address(`api/${path}`, query), { signal }));
}

export async function post(path, query, body) {
  const headers = { "content-type": "application/json", "x-csrf-token": session?.csrf ?? "" };
  return answered(await reached(address(`api/${path}`, query), { method: "POST", headers, body: JSON.stringify(body) }));
}

export async function openSession(body) {
  session = body ? await post("session", {}, body) : await get("session");
  return session;
}

/** Ask for an answer that comes in pieces; `on` hears each. */
export async function stream(path, body, signal, on) {
  const headers = { "content-type": "application/json", "x-csrf-token": session?.csrf ?? "" };
  const response = await reached(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) await answered(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) on(JSON.parse(line));
  }
}

/** Events of a run. The browser connects again by itself and says what it heard last. */
export function events(query, on) {
  const source = new EventSource(address("api/run/events", query));
  source.onmessage = (message) => on.change(JSON.parse(message.data));
  source.onopen = () => on.state("live");
  source.onerror = () => on.state(source.readyState === EventSource.CLOSED ? "closed" : "lost");
  return () => source.close();
}

/** The page and its choices, as the address after # has them; no page is the first of those that are shown. */
export function place() {
  const [page, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { page, query: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(page, query) {
  return `#/${address(page, query)}`;
}

/** Change choices of the present page without a new entry in the history. */
export function choose(changes) {
  const { page, query } = place();
  history.replaceState(null, "", link(page, { ...query, ...changes }));
  dispatchEvent(new Event("placechange"));
}
