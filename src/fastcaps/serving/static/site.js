// The static page: the network runs here, with ONNX Runtime as WebAssembly.

import { bytesOf, element, showImage, showLengths, titles } from "./charts.js";
import { DrawingPad } from "./drawing.js";
import { inverted, networkInput } from "./pictures.js";

const $ = (id) => document.getElementById(id);
const about = await (await fetch("network.json")).json();
const { channels, height, width } = about.input;

const pad = new DrawingPad($("pad"), () => {
  const pixels = pad.pixels(height, width);
  if (pixels !== null) show(pixels, false);
});
$("drawing").hidden = $("clear").hidden = channels !== 1;
if (channels !== 1) $("how").textContent = "Upload or paste a picture, or choose a test image.";

async function choose(file) {
  if (!file) return;
  pad.clear();
  try {
    const result = inverted(await networkInput(file, about.input), about.input, about.background);
    show(result.pixels, result.inverted);
    trouble("");
  } catch {
    trouble("The picture is damaged, or of a format that this browser doesn't read.");
  }
}

let ort = null;
let session = null;
let waiting = null;
let busy = false;

// The latest picture only: what comes while the network is busy replaces what waits.
async function show(pixels, swapped) {
  waiting = { pixels, swapped };
  if (busy || session === null) return;
  busy = true;
  while (waiting !== null) {
    const next = waiting;
    waiting = null;
    const begun = performance.now();
    const lengths = await run(next.pixels);
    present(next, lengths, performance.now() - begun);
  }
  busy = false;
}

function present({ pixels, swapped }, lengths, milliseconds) {
  const order = lengths.map((_, k) => k).sort((a, b) => lengths[b] - lengths[a]);
  const words = order.slice(0, 2).map((k) => `${about.classes[k]} (${lengths[k].toFixed(2)})`);
  $("answer").textContent = `${titles[about.routing]}: ${words.join(", then ")}.`;
  $("times").textContent = `${milliseconds.toFixed(1)} ms (ONNX Runtime as WebAssembly, ${about.precision}).`;
  showLengths($("lengths"), about.classes, { [about.routing]: lengths });
  const seen = `${width}×${height} pixels, ${swapped ? "light and dark swapped" : "not inverted"}`;
  $("seen-text").textContent = seen;
  showImage($("seen"), { channels, height, width, pixels }, `What the network sees: ${seen}`);
}

async function run(pixels) {
  const values = about.floats ? Float32Array.from(pixels, (value) => value / 255) : pixels;
  const type = about.floats ? "float32" : "uint8";
  const outputs = await session.run({ images: new ort.Tensor(type, values, [1, channels, height, width]) }, [about.output]);
  return Array.from(outputs[about.output].data);
}

function trouble(text) {
  $("error").hidden = text === "";
  $("error").textContent = text;
}

function exampleButton({ label, png }) {
  const image = element("img", { src: `data:image/png;base64,${png}`, alt: `Test image: ${label}` });
  const button = element("button", { type: "button" }, image);
  button.addEventListener("click", () => choose(new File([bytesOf(png)], "example.png", { type: "image/png" })));
  return button;
}

function fact([name, text]) {
  return [element("dt", { textContent: name }), element("dd", { textContent: text })];
}

$("about").replaceChildren(...Object.entries(about.facts).flatMap(fact));
$("examples").replaceChildren(...about.examples.map(exampleButton));
$("clear").addEventListener("click", () => pad.clear());
$("upload").addEventListener("change", (event) => {
  choose(event.target.files[0]);
  event.target.value = "";
});
document.addEventListener("paste", (event) => choose(event.clipboardData.files[0]));

try {
  ort = await import(about.runtime.module);
  const binary = await fetch(about.runtime.binary, { integrity: about.runtime.integrity });
  ort.env.wasm.wasmBinary = await binary.arrayBuffer();
  ort.env.wasm.numThreads = 1;
  session = await ort.InferenceSession.create(await (await fetch("network.onnx")).arrayBuffer());
  $("answer").textContent = "No picture yet.";
  if (waiting !== null) show(waiting.pixels, waiting.swapped);
} catch (error) {
  $("answer").textContent = "";
  trouble(`The network could not be loaded: ${error.message}`);
}
