// llama.cpp as the npm package node-llama-cpp brings it, built beforehand: alone, or with one of its token predictors.
// The protocol is that of protocol.py.

import {createInterface} from "node:readline";

const CONFIDENCE = 0.6; // below it the draft ends: the package's own number
let spec, kit, target;

async function open(path, lora) {
  const llama = await kit.getLlama({gpu: false, build: "never", logLevel: "error", maxThreads: spec.threads});
  const model = await llama.loadModel({modelPath: path});
  return model.createContext({
    sequences: spec.batch, contextSize: Math.ceil((spec.max_len + 64) / 256) * 256,
    threads: {ideal: spec.threads, min: spec.threads}, ...(lora ? {lora} : {}),
  });
}

function predictor(draft) {
  if (spec.mode === "draft") // it waits for k tokens: a draft that runs beside the target would find no thread free
    return new kit.DraftSequenceTokenPredictor(draft.getSequence(),
      {minTokens: spec.k, maxTokens: spec.k, minConfidence: CONFIDENCE});
  return new kit.InputLookupTokenPredictor({patternLength: {min: 1, max: 3}, predictionLength: {max: spec.k}});
}

async function load(wish) {
  spec = wish;
  kit = await import(spec.options.module);
  const [context, draft] = [await open(spec.model, spec.own?.lora), spec.mode === "draft" ? await open(spec.draft) : null];
  const take = () => context.getSequence(spec.mode === "plain" ? {} : {tokenPredictor: predictor(draft)});
  target = Array.from({length: spec.batch}, take);
  const llama = await kit.getLlama("lastBuild").catch(() => null);
  return {"node-llama-cpp": `llama.cpp ${llama?.llamaCppRelease?.release ?? "of the package"}`};
}

async function complete(sequence, ids, most) {
  const out = [];
  await sequence.clearHistory(); // the same prompts come again in every round
  if (spec.mode === "lookup") sequence.tokenPredictor.updateInputTokens(ids);
  for await (const token of sequence.evaluate(ids, {temperature: 0, yieldEogToken: true})) {
    out.push(token);
    if (out.length >= most || spec.eos.includes(token)) break;
  }
  return out;
}

async function generate({prompts, max_tokens}) {
  const started = performance.now();
  const ids = await Promise.all(prompts.map((prompt, i) => complete(target[i], prompt, max_tokens)));
  return {ids, seconds: (performance.now() - started) / 1000};
}

for await (const line of createInterface({input: process.stdin})) {
  const asked = JSON.parse(line);
  const answer = await (asked.load ? load(asked.load).then((ready) => ({ready})) : generate(asked.generate))
    .catch((error) => ({error: String(error?.message ?? error)}));
  process.stdout.write(JSON.stringify(answer) + "\n");
}
process.exit(0);
