// -- talking to the server ---------------------------------------------------------------------------------------

function headers() {
  const key = $("key").value.trim();
  return {"Content-Type": "application/json", ...(key && {Authorization: `Bearer ${key}`})};
}

/** The server's own sentence where it sent one. */
async function refusal(response) {
  let message = `The server answered ${response.status} ${response.statusText}.`;
  try { message = (await response.json()).error.message ?? message; } catch { /* not an error object */ }
  if (response.status === 401) message += " Enter the API key under Settings.";
  const wait = response.headers.get("Retry-After");
  return new Error(wait ? `${message} Try again in ${wait} s.` : message);
}

async function reach(path, options) {
  try { return await fetch(path, options); } catch (error) {
    if (!(error instanceof TypeError)) throw error;
    throw new Error("The server cannot be reached; see whether it still runs.");
  }
}

/** The data of each server-sent event, up to [DONE]. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const {value, done} = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new Error("The connection was lost before the answer was complete.");
    });
    if (done) throw new Error("The connection was lost before the answer was complete.");
    const parts = (rest + value).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const data of parts.filter((part) => part.startsWith("data:")).map((part) => part.slice(5).trim())) {
      if (data === "[DONE]") return;
      yield JSON.parse(data);
    }
  }
}

/** One request. `answer` is written as it comes; resolves when all of it is there. */
async function ask(answer, body, signal) {
  const path = "messages" in body ? "v1/chat/completions" : "v1/completions";
  const begun = performance.now();
  answer.clock = () => (performance.now() - begun) / 1000;
  const response = await reach(path, {method: "POST", headers: headers(), body: JSON.stringify(body), signal});
  if (!response.ok) throw await refusal(response);
  for await (const event of events(response)) {
    if (event.error) throw new Error(event.error.message);
    for (const choice of event.choices) {
      const {content, reasoning_content: thought} = choice.delta ?? {content: choice.text};
      if (content || thought) answer.write(content || thought, choice.pieces, Boolean(thought));
      if (choice.finish_reason) answer.finish = choice.finish_reason;
      if (choice.reasoning) answer.reasoning = choice.reasoning;
    }
    if (event.usage) answer.usage = event.usage;
  }
}
