// The drawing area, and how a drawing becomes an image like those of MNIST.

const WIDTH = 22;

export class DrawingPad {
  // canvas: black with white lines; onChange: called while somebody draws.
  constructor(canvas, onChange) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { willReadFrequently: true });
    this.onChange = onChange;
    this.last = null;
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => (this.last = null));
  }

  clear() {
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
  }

  // The drawing as bytes of height × width, or null where nothing is drawn.
  pixels(height, width) {
    const { data } = this.context.getImageData(0, 0, this.canvas.width, this.canvas.height);
    const values = new Float32Array(data.length / 4);
    for (let k = 0; k < values.length; k += 1) values[k] = data[4 * k];
    return fitted(values, this.canvas.width, height, width);
  }

  #begin(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.#place(event);
    this.#line(this.last, this.last);
    event.preventDefault();
  }

  #move(event) {
    if (this.last === null) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const each of events.length ? events : [event]) {
      const place = this.#place(each);
      this.#line(this.last, place);
      this.last = place;
    }
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    return {
      x: ((event.clientX - box.left) * this.canvas.width) / box.width,
      y: ((event.clientY - box.top) * this.canvas.height) / box.height,
    };
  }

  #line(from, to) {
    const { context } = this;
    context.strokeStyle = "#fff";
    context.lineWidth = WIDTH;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x, to.y);
    context.stroke();
    this.onChange();
  }
}

// As the digits of MNIST were made: the drawing fills 20 of 28 pixels, its center of mass is in the middle.
function fitted(values, stride, height, width) {
  const box = bounds(values, stride);
  if (box === null) return null;
  const { left, top, right, bottom } = box;
  const size = Math.max(right - left, bottom - top);
  const step = size / ((20 / 28) * Math.min(height, width));
  const rows = Math.max(1, Math.round((bottom - top) / step));
  const columns = Math.max(1, Math.round((right - left) / step));
  const small = new Float32Array(rows * columns);
  let sum = 0;
  let x = 0;
  let y = 0;
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const value = average(values, stride, left + column * step, top + row * step, step);
      small[row * columns + column] = value;
      sum += value;
      x += value * (column + 0.5);
      y += value * (row + 0.5);
    }
  }
  const shiftX = within(Math.round(width / 2 - x / sum), 0, width - columns);
  const shiftY = within(Math.round(height / 2 - y / sum), 0, height - rows);
  const pixels = new Uint8Array(height * width);
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      pixels[(row + shiftY) * width + column + shiftX] = Math.round(small[row * columns + column]);
    }
  }
  return pixels;
}

function bounds(values, stride) {
  let [left, top, right, bottom] = [Infinity, Infinity, -1, -1];
  for (let k = 0; k < values.length; k += 1) {
    if (values[k] > 32) {
      const x = k % stride;
      const y = Math.floor(k / stride);
      left = Math.min(left, x);
      right = Math.max(right, x + 1);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y + 1);
    }
  }
  return right < 0 ? null : { left, top, right, bottom };
}

function average(values, stride, left, top, size) {
  const rows = values.length / stride;
  let sum = 0;
  let count = 0;
  for (let y = Math.floor(top); y < Math.min(rows, top + size); y += 1) {
    for (let x = Math.floor(left); x < Math.min(stride, left + size); x += 1) {
      sum += values[y * stride + x];
      count += 1;
    }
  }
  return count ? sum / count : 0;
}

function within(value, low, high) {
  return Math.max(low, Math.min(high, value));
}
