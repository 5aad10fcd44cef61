// Lines over time as SVG, and the words for numbers. Nothing here makes HTML out of text: names come from clients.
"use strict";

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "color") made.style.background = value;
    else if (name === "dot") made.style.setProperty("--dot", value);
    else if (name === "width") made.style.width = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function svg(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "stroke" || name === "fill") made.style[name] = value;
    else made.setAttribute(name, value);
  }
  if (text !== undefined) made.textContent = text;
  return made;
}

const digits = (value) => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);

function milliseconds(ms) {
  if (ms >= 1000) return digits(ms / 1000) + " s";
  return ms >= 1 || ms === 0 ? (ms === 0 ? "0" : digits(ms)) + " ms" : digits(ms * 1000) + " µs";
}

function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  for (; count >= 999.5 && unit < units.length - 1; ++unit) count /= 1000;
  return (unit === 0 ? count.toFixed(0) : digits(count)) + " " + units[unit];
}

const rate = (count) => bytes(count) + "/s";

function span(seconds) {
  if (seconds < 60) return seconds.toFixed(0) + " s";
  if (seconds < 3600) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h " + Math.floor(seconds / 60) % 60 + " min";
  return Math.floor(seconds / 86400) + " d";
}

// A round number at or above the largest value: 1, 2, 2.5 or 5 times a power of ten.
function ceiling(value) {
  if (value <= 0) return 1;
  const power = Math.pow(10, Math.floor(Math.log10(value)));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.9999);
}

// lines: [{color, points: [[second, value]]}], a value of null is a gap; marks: [[second, color, text]].
function chart(width, height, from, to, lines, marks, label) {
  const left = 62, right = 8, top = 12, bottom = 20;
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, height, role: "img"});
  const largest = Math.max(0, ...lines.flatMap((line) => line.points.map((point) => point[1] || 0)));
  const most = ceiling(largest);
  const x = (second) => left + (width - left - right) * (second - from) / Math.max(to - from, 1);
  const y = (value) => top + (height - top - bottom) * (1 - value / most);
  for (const part of [0, 0.5, 1]) {
    root.append(svg("line", {class: "grid", x1: left, x2: width - right, y1: y(part * most), y2: y(part * most)}));
    root.append(svg("text", {x: left - 8, y: y(part * most) + 4, "text-anchor": "end"}, label(part * most)));
  }
  root.append(svg("text", {x: left, y: height - 4}, span(to - from) + " ago"));
  root.append(svg("text", {x: width - right, y: height - 4, "text-anchor": "end"}, "now"));
  for (const [second, color, text] of marks) {
    if (second < from || second > to) continue;
    const group = svg("g", {});
    group.append(svg("title", {}, text));
    group.append(svg("line", {class: "mark", x1: x(second), x2: x(second), y1: top, y2: height - bottom, stroke: color}));
    group.append(svg("path", {d: `M${x(second) - 5} ${top - 8}h10l-5 8z`, fill: color}));
    root.append(group);
  }
  for (const line of lines) {
    let path = "", pen = false;
    for (const [second, value] of line.points) {
      if (value === null) { pen = false; continue; }
      path += `${pen ? "L" : "M"}${x(second).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = true;
    }
    root.append(svg("path", {class: "line", d: path, stroke: line.color}));
  }
  return root;
}
