// Calls to the server this page came from. Everything else of the page goes through here.

const KEY = "hasten-key";

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function rememberKey(key) {
  sessionStorage.setItem(KEY, key);
}

function headers() {
  const key = sessionStorage.getItem(KEY);
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

async function checked(response) {
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not one of the server's own errors: what stands between may speak otherwise.
  }
  throw new ApiError(response.status, message);
}

export async function get(path) {
  return (await checked(await fetch(path, { headers: headers() }))).json();
}

/** The events of a streamed answer, parsed, until the server says that it is done. */
export async function* stream(path, body, signal) {
  const request = { method: "POST", headers: headers(), body: JSON.stringify(body), signal };
  const response = await checked(await fetch(path, request));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "the answer broke off");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      const data = event.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const parsed = JSON.parse(data);
      if (parsed.error) throw new ApiError(0, parsed.error.message);
      yield parsed;
    }
  }
}
