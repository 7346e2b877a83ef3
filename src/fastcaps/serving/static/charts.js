// Lengths as a table with bars, images and grids as canvases: always with a text beside the picture.

export const titles = { fast: "Fast routing", dynamic: "Dynamic routing", none: "Network" };

export function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

// lengths: {fast: […], dynamic: […]}, either may be missing.
export function showLengths(table, classNames, lengths) {
  const routings = Object.keys(lengths);
  const winners = routings.map((routing) => indexOfLargest(lengths[routing]));
  const head = element("tr", {}, column("Class"), ...routings.map((routing) => column(titles[routing])));
  const rows = classNames.map((name, k) => {
    const cells = routings.map((routing) => {
      const bar = element("span", { className: `bar ${routing}` });
      bar.style.transform = `scaleX(${Math.min(1, Math.max(0, lengths[routing][k]))})`;
      return element("td", {}, lengths[routing][k].toFixed(3), bar);
    });
    const header = element("th", { scope: "row", textContent: name });
    return element("tr", { className: winners.includes(k) ? "winner" : "" }, header, ...cells);
  });
  const caption = element("caption", { className: "faint", textContent: "Length of each class capsule" });
  table.replaceChildren(caption, element("thead", {}, head), element("tbody", {}, ...rows));
}

// image: {channels, height, width, pixels}, the pixels as bytes (channel, row, column).
export function showImage(canvas, image, label) {
  const { channels, height, width, pixels } = image;
  const data = new ImageData(width, height);
  for (let k = 0; k < height * width; k += 1) {
    for (let channel = 0; channel < 3; channel += 1) {
      data.data[4 * k + channel] = pixels[(channels === 3 ? channel * height * width : 0) + k];
    }
    data.data[4 * k + 3] = 255;
  }
  draw(canvas, data, label);
}

// grid: rows of numbers, drawn from their lowest (dark) to their highest (light).
export function showGrid(canvas, grid, label) {
  const { low, high } = range(grid);
  const data = new ImageData(grid[0].length, grid.length);
  grid.flat().forEach((value, k) => {
    const share = high > low ? (value - low) / (high - low) : 1;
    data.data.set([...color(share), 255], 4 * k);
  });
  draw(canvas, data, label);
}

export function range(grid) {
  const values = grid.flat();
  return { low: Math.min(...values), high: Math.max(...values) };
}

// A grid in words, for those who don't see it.
export function describeGrid(grid) {
  const { low, high } = range(grid);
  if (high - low < 1e-6) return `${high.toFixed(2)} everywhere`;
  const row = grid.findIndex((values) => values.includes(high));
  return `${low.toFixed(2)} to ${high.toFixed(2)}, highest in row ${row + 1}, column ${grid[row].indexOf(high) + 1}`;
}

export function indexOfLargest(values) {
  return values.indexOf(Math.max(...values));
}

export function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function draw(canvas, data, label) {
  canvas.width = data.width;
  canvas.height = data.height;
  canvas.getContext("2d").putImageData(data, 0, 0);
  canvas.setAttribute("aria-label", label);
}

function column(text) {
  return element("th", { scope: "col", textContent: text });
}

// From dark blue over orange to light yellow; readable without telling red from green.
const COLORS = [[12, 16, 60], [86, 20, 110], [187, 55, 84], [249, 142, 9], [252, 255, 164]];

function color(share) {
  const place = Math.min(share, 0.9999) * (COLORS.length - 1);
  const k = Math.floor(place);
  return COLORS[k].map((value, channel) => value + (place - k) * (COLORS[k + 1][channel] - value));
}
