// As runtime_worker.py, in onnxruntime-web: `node runtime_worker.mjs PACKAGE FOLDER REPETITIONS`.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [home, folder, repetitions] = process.argv.slice(2);
const ort = await import(pathToFileURL(join(home, "dist/ort.node.min.mjs")));
ort.env.logLevel = "fatal";
ort.env.wasm.numThreads = 2;

const content = JSON.parse(readFileSync(join(folder, "case.json")));
const { version } = JSON.parse(readFileSync(join(home, "package.json")));
const arrays = { float32: Float32Array, int64: BigInt64Array };
const feed = {};
for (const [name, { type, shape, file }] of Object.entries(content.inputs)) {
  const bytes = readFileSync(join(folder, file));
  const numbers = new arrays[type](bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  feed[name] = new ort.Tensor(type, numbers, shape);
}

const results = {};
const sessions = {};
for (const [form, file] of Object.entries(content.forms)) {
  try {
    const session = await ort.InferenceSession.create(readFileSync(join(folder, file)), { executionProviders: ["wasm"] });
    const given = Object.fromEntries(session.inputNames.map((name) => [name, feed[name]]));
    const found = await session.run(given);
    const outputs = content.outputs.map((_, at) => `web-${form}-${at}.bin`);
    content.outputs.forEach((name, at) => writeFileSync(join(folder, outputs[at]), Buffer.from(found[name].data.buffer)));
    const shapes = content.outputs.map((name) => found[name].dims);
    results[form] = { outputs, shapes, seconds: [], version };
    sessions[form] = () => session.run(given);
  } catch (error) {
    results[form] = { failed: String(error).split("\n")[0].slice(0, 300), version };
  }
}
for (let turn = 0; turn < Number(repetitions); turn++) {
  for (const [form, run] of Object.entries(sessions)) {
    const begin = performance.now();
    await run();
    results[form].seconds.push((performance.now() - begin) / 1000);
  }
}
console.log(JSON.stringify(results));
