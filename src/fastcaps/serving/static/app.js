// The live page: a picture goes to the server, and what its network makes of it is shown.

import { get, latestOnly, post, ServerError, useKey } from "./api.js";
import { bytesOf, describeGrid, element, showGrid, showImage, showLengths, titles } from "./charts.js";
import { DrawingPad } from "./drawing.js";

const $ = (id) => document.getElementById(id);
const SLIDER = { min: -0.6, max: 0.6, step: 0.01 };
let models = [];
let model = null;
let current = null;
let timer = null;

const pad = new DrawingPad($("pad"), drawn);
const send = latestOnly(classify);
const redraw = latestOnly(reconstruct);

// ---- pictures in ----

function drawn() {
  if (model === null) return;
  const { height, width } = model.input;
  const pixels = pad.pixels(height, width);
  if (pixels === null) return;
  const canvas = element("canvas");
  showImage(canvas, { channels: 1, height, width, pixels }, "");
  canvas.toBlob((blob) => send(blob, "image/png"));
}

function choose(file) {
  if (!file) return;
  pad.clear();
  send(file, file.type || "application/octet-stream");
}

async function classify(picture, type) {
  const path = `/v1/models/${encodeURIComponent(model.name)}/`;
  try {
    if (model.explore) {
      show(await post(`${path}explore`, picture, type));
    } else {
      const [image] = (await post(`${path}predict?pixels=yes`, picture, type)).images;
      const answer = image[model.routing];
      const result = { lengths: answer.lengths, milliseconds: answer.milliseconds.network, engine: model.engine };
      show({ input: { ...image.input, inverted: image.inverted }, [model.routing]: result });
    }
    return fail(null);
  } catch (error) {
    return fail(error);
  }
}

// ---- answers out ----

function show(answer) {
  current = answer;
  const routings = Object.keys(titles).filter((routing) => routing in answer);
  const lengths = Object.fromEntries(routings.map((routing) => [routing, answer[routing].lengths]));
  showLengths($("lengths"), model.classes, lengths);
  const lines = routings.map((routing) => `${titles[routing]}: ${best(answer[routing].lengths)}. `);
  $("answer").replaceChildren(...lines.map((text) => element("span", { className: "line", textContent: text })));
  $("times").textContent = routings
    .map((routing) => `${titles[routing]}: ${answer[routing].milliseconds.toFixed(1)} ms (${answer[routing].engine}).`)
    .join(" ");
  const { height, width, inverted } = answer.input;
  const seen = `${width}×${height} pixels, ${inverted ? "light and dark swapped" : "not inverted"}`;
  $("seen-text").textContent = seen;
  showImage($("seen"), decoded(answer.input), `What the network sees: ${seen}`);
  if (answer.winner) {
    showReconstruction(answer.reconstruction);
    showSliders(answer.winner);
    showCoefficients();
  }
}

function best(lengths) {
  const order = lengths.map((_, k) => k).sort((a, b) => lengths[b] - lengths[a]);
  const words = order.slice(0, 2).map((k) => `${model.classes[k]} (${lengths[k].toFixed(2)})`);
  return words.join(", then ");
}

function showReconstruction(image) {
  const text = `What the capsule of ${current.winner.name} stands for`;
  $("drawn-text").textContent = text;
  showImage($("drawn"), decoded(image), text);
}

function showSliders({ capsule }) {
  const sliders = capsule.map((value, k) => {
    const slider = element("input", { type: "range", ...SLIDER });
    slider.min = Math.min(SLIDER.min, value);
    slider.max = Math.max(SLIDER.max, value);
    slider.value = value;
    slider.addEventListener("input", () => redraw());
    slider.setAttribute("aria-label", `Number ${k + 1} of the capsule`);
    return element("label", {}, `${k + 1}`, slider);
  });
  $("sliders").replaceChildren(...sliders);
}

async function reconstruct() {
  const capsule = [...$("sliders").querySelectorAll("input")].map((slider) => Number(slider.value));
  const body = JSON.stringify({ class: current.winner.class, capsule });
  try {
    const path = `/v1/models/${encodeURIComponent(model.name)}/reconstruct`;
    showReconstruction(await post(path, body, "application/json"));
    return fail(null);
  } catch (error) {
    return fail(error);
  }
}

function showCoefficients() {
  const { iterations, master } = current.coefficients;
  const slider = $("iteration");
  slider.max = iterations.length;
  const iteration = Number(slider.value);
  const grid = iterations[iteration - 1];
  const loop = `Loop, iteration ${iteration} of ${iterations.length}: ${describeGrid(grid)}`;
  const matrix = `Master coefficients, no loop: ${describeGrid(master)}`;
  showGrid($("loop"), grid, loop);
  showGrid($("master"), master, matrix);
  $("loop-text").textContent = loop;
  $("master-text").textContent = matrix;
}

function play() {
  const playing = timer !== null;
  clearInterval(timer);
  timer = playing ? null : setInterval(nextIteration, 900);
  $("play").setAttribute("aria-pressed", String(!playing));
  $("play").textContent = playing ? "Play the loop" : "Pause";
}

function nextIteration() {
  const slider = $("iteration");
  slider.value = (Number(slider.value) % Number(slider.max)) + 1;
  if (current?.coefficients) showCoefficients();
}

function decoded(image) {
  return { ...image, pixels: bytesOf(image.pixels) };
}

// ---- trouble ----

// Shows an error, or that there is none any more; returns the seconds after which to try again.
function fail(error) {
  const text = error === null ? "" : error instanceof ServerError ? error.message : "The server can't be reached.";
  $("error").hidden = error === null;
  $("error").textContent = text.charAt(0).toUpperCase() + text.slice(1);
  if (error?.status === 401) $("key").hidden = false;
  return error?.status === 503 ? error.retryAfter || 1 : 0;
}

// ---- start ----

async function start() {
  try {
    models = (await get("/v1/models")).models;
  } catch (error) {
    return fail(error);
  }
  fail(null);
  $("key").hidden = true;
  $("model").replaceChildren(...models.map(({ name }) => element("option", { value: name, textContent: name })));
  $("pick").hidden = models.length < 2;
  return select(models[0]);
}

async function select(chosen) {
  model = chosen;
  current = null;
  pad.clear();
  $("answer").textContent = "No picture yet.";
  for (const id of ["lengths", "times", "sliders", "seen-text", "drawn-text", "loop-text", "master-text"]) $(id).replaceChildren();
  for (const id of ["seen", "drawn", "loop", "master"]) $(id).getContext("2d").clearRect(0, 0, 1000, 1000);
  const drawable = model.input.channels === 1;
  $("drawing").hidden = $("clear").hidden = !drawable;
  $("how").textContent = `${drawable ? "Draw, upload" : "Upload"} or paste a picture, or choose a test image.`;
  for (const id of ["explore", "coefficients", "drawn-figure"]) $(id).hidden = !model.explore;
  $("missing").hidden = model.explore;
  $("missing").textContent =
    "The routing loop, reconstructions and coefficients need PyTorch on the server and a run folder: " +
    "this server has only the exported file.";
  const { examples } = await get(`/v1/models/${encodeURIComponent(model.name)}/examples`);
  $("examples").replaceChildren(...examples.map(exampleButton));
}

function exampleButton({ label, png }) {
  const image = element("img", { src: `data:image/png;base64,${png}`, alt: `Test image: ${label}` });
  const button = element("button", { type: "button" }, image);
  button.addEventListener("click", () => choose(new File([bytesOf(png)], "example.png", { type: "image/png" })));
  return button;
}

$("clear").addEventListener("click", () => pad.clear());
$("upload").addEventListener("change", (event) => {
  choose(event.target.files[0]);
  event.target.value = "";
});
$("reset").addEventListener("click", () => {
  if (current?.winner) {
    showSliders(current.winner);
    showReconstruction(current.reconstruction);
  }
});
$("iteration").addEventListener("input", () => current?.coefficients && showCoefficients());
$("play").addEventListener("click", play);
$("model").addEventListener("change", (event) => select(models.find(({ name }) => name === event.target.value)));
$("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey($("key-value").value);
  start();
});
document.addEventListener("paste", (event) => choose(event.clipboardData.files[0]));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  choose(event.dataTransfer.files[0]);
});

start();
