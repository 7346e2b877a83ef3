// From an image file to a network's input, as the server and `fastcaps predict` do it with Pillow.

// input: {channels, height, width, resize}; returns bytes (channel, row, column).
export async function networkInput(file, { channels, height, width, resize }) {
  const bitmap = await createImageBitmap(file);
  const canvas = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0);
  const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
  const [rows, columns] = resize ?? [height, width];
  const planes = (channels === 1 ? [gray(data)] : [0, 1, 2].map((channel) => plane(data, channel))).map((values) =>
    resized(values, canvas.width, canvas.height, columns, rows),
  );
  const top = Math.floor((rows - height) / 2);
  const left = Math.floor((columns - width) / 2);
  const pixels = new Uint8Array(channels * height * width);
  planes.forEach((values, channel) => {
    for (let y = 0; y < height; y += 1) {
      const start = (y + top) * columns + left;
      pixels.set(values.subarray(start, start + width), (channel * height + y) * width);
    }
  });
  return pixels;
}

// Swaps light and dark where a gray picture's edge is nearer to the other end than that of the training images.
export function inverted(pixels, { channels, height, width }, background) {
  if (background === null || channels !== 1 || (background > 0.25 && background < 0.75)) return { pixels, inverted: false };
  const edge = [];
  for (let x = 0; x < width; x += 1) edge.push(pixels[x], pixels[(height - 1) * width + x]);
  for (let y = 0; y < height; y += 1) edge.push(pixels[y * width], pixels[(y + 1) * width - 1]);
  edge.sort((a, b) => a - b);
  const median = (edge[edge.length / 2 - 1] + edge[edge.length / 2]) / 2 / 255;
  const other = Math.abs(1 - median - background) < Math.abs(median - background);
  return { pixels: other ? pixels.map((value) => 255 - value) : pixels, inverted: other };
}

function plane(data, channel) {
  return Uint8Array.from({ length: data.length / 4 }, (_, k) => data[4 * k + channel]);
}

function gray(data) {
  const luma = (k) => (data[4 * k] * 19595 + data[4 * k + 1] * 38470 + data[4 * k + 2] * 7471 + 32768) >> 16;
  return Uint8Array.from({ length: data.length / 4 }, (_, k) => luma(k));
}

// Pillow's bilinear filter: a triangle as wide as the picture is made smaller; rows first, then columns.
function resized(values, width, height, columns, rows) {
  const across = weights(width, columns);
  const wide = new Uint8Array(height * columns);
  for (let y = 0; y < height; y += 1) {
    across.forEach(({ first, shares }, x) => {
      wide[y * columns + x] = Math.round(shares.reduce((sum, share, k) => sum + share * values[y * width + first + k], 0));
    });
  }
  const result = new Uint8Array(rows * columns);
  weights(height, rows).forEach(({ first, shares }, y) => {
    for (let x = 0; x < columns; x += 1) {
      result[y * columns + x] = Math.round(shares.reduce((sum, share, k) => sum + share * wide[(first + k) * columns + x], 0));
    }
  });
  return result;
}

function weights(from, to) {
  const scale = from / to;
  const support = Math.max(scale, 1);
  return Array.from({ length: to }, (_, place) => {
    const center = (place + 0.5) * scale;
    const first = Math.max(0, Math.floor(center - support + 0.5));
    const last = Math.min(from, Math.floor(center + support + 0.5));
    const shares = Array.from({ length: last - first }, (_, k) =>
      Math.max(0, 1 - Math.abs((first + k - center + 0.5) / support)),
    );
    const sum = shares.reduce((total, share) => total + share, 0);
    return { first, shares: shares.map((share) => share / sum) };
  });
}
