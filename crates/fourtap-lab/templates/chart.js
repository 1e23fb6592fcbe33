// Charts. A figure's `data-chart` says what is drawn (src/report/chart.rs); its words and numbers are cells of the table
// below it. A chart is drawn for the width it has, and again when that changes: scaled, its words would be too small.

/** Adds an element to an SVG. */
const add = (parent, name, attributes = {}, text = "") => {
  const element = document.createElementNS(parent.namespaceURI, name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, typeof value === "number" ? Number(value.toFixed(1)) : value);
  }
  element.textContent = text;
  parent.append(element);
  return element;
};
const line = (parent, kind, x1, y1, x2, y2) => add(parent, "line", { class: kind, x1, y1, x2, y2 });
const write = (parent, kind, x, y, text, anchor = "start") =>
  add(parent, "text", { class: kind, x, y, "text-anchor": anchor }, text);

const pen = document.createElement("canvas").getContext("2d");
const widthOf = (text, weight = 400) => {
  pen.font = `${weight} 12.5px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
};
/** As much of the text as fits. The end of a name tells more than its beginning; of other text the beginning does. */
const fitting = (text, room, { weight = 400, keep = "end" } = {}) => {
  if (widthOf(text, weight) <= room) return text;
  const letters = [...text];
  const cut = () => (keep === "end" ? `…${letters.join("")}` : `${letters.join("")}…`);
  while (letters.length && widthOf(cut(), weight) > room) keep === "end" ? letters.shift() : letters.pop();
  return letters.length < 3 && keep !== "end" ? "" : cut();
};

const isPositive = (number) => Number.isFinite(number) && number > 0;

/** Places in proportion to logarithms, so that all positive numbers lie between two places with room at the ends. */
const logScale = (numbers, from, to) => {
  const logs = numbers.filter(isPositive).map(Math.log10);
  if (!logs.length) logs.push(0, 1);
  const [least, most] = [Math.min(...logs), Math.max(...logs)];
  const room = Math.max(0.06 * (most - least), 0.08);
  const [low, high] = [least - room, most + room];
  const atLog = (log) => from + ((log - low) / (high - low)) * (to - from);
  return {
    low, high, atLog,
    at: (number) => (isPositive(number) ? atLog(Math.log10(number)) : undefined),
    ticks: (apart) => {
      const most = Math.max(Math.abs(to - from) / apart, 2);
      const density = most / (high - low);
      const steps = density >= 9 ? [1, 1.5, 2, 3, 4, 5, 6, 7, 8] : density >= 5 ? [1, 2, 3, 5, 7]
        : density >= 3 ? [1, 2, 5] : density >= 2 ? [1, 3] : [1];
      const stride = Math.max(Math.ceil((high - low) / most), 1);
      const ticks = [];
      for (let power = Math.floor(low); power <= high; power += stride) {
        ticks.push(...steps.map((step) => step * 10 ** power));
      }
      return ticks.filter((tick) => isPositive(tick) && Math.log10(tick) >= low && Math.log10(tick) <= high);
    },
  };
};

/** Places in proportion to numbers, from -reach to reach. */
const linearScale = (reach, from, to) => ({
  reach,
  at: (number) => {
    const inside = Math.max(-reach, Math.min(reach, number));
    return Number.isFinite(number) ? from + ((inside + reach) / (2 * reach)) * (to - from) : undefined;
  },
  ticks: (apart) => {
    const rough = (2 * reach * apart) / (to - from);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((it) => it * power).find((it) => it >= rough) ?? rough;
    const count = Math.floor(reach / step);
    return Array.from({ length: 2 * count + 1 }, (_, index) => (index - count) * step);
  },
});

/** A number on an axis, without digits that say nothing. */
const shortly = (number) => {
  const size = Math.abs(number);
  return size === 0 || (size >= 1e-3 && size < 1e5) ? `${Number(number.toFixed(3))}` : number.toExponential(0);
};

const polygon = (...corners) => (parent, kind, x, y) =>
  add(parent, "polygon", { class: kind, points: corners.map(([dx, dy]) => `${x + dx},${y + dy}`).join(" ") });
const circle = (r) => (parent, kind, cx, cy) => add(parent, "circle", { class: kind, cx, cy, r });
const square = (side) => polygon([-side, -side], [side, -side], [side, side], [-side, side]);
const stroke = (parent, kind, x, y) => line(parent, kind, x, y - 5, x, y + 5);
const diamond = polygon([-5.5, 0], [0, -5.5], [5.5, 0], [0, 5.5]);
const triangle = polygon([0, -5], [4.8, 3.6], [-4.8, 3.6]);
/** How marks look, by the shapes of src/report/chart.rs. */
const SHAPES = {
  ours: circle(5), second: circle(4), approximate: diamond, "best-peer": diamond, peer: stroke, sample: stroke,
  faster: polygon([-6, 0], [5, -6], [5, 6]), slower: polygon([6, 0], [-5, -6], [-5, 6]), same: circle(3.5),
  unclear: square(4), l1: square(3.7), "l2-counted": triangle, dram: circle(4.2), "dram-counted": circle(4.2),
};

/** The signs and what they mean, as many in a line as fit; where the chart below may begin. */
const drawLegend = (svg, legend, width) => {
  let [x, y] = [0, 10];
  for (const [shape, words] of legend) {
    const needed = 19 + widthOf(words);
    if (x > 0 && x + needed > width) [x, y] = [0, y + 22];
    SHAPES[shape](svg, shape, x + 7, y);
    write(svg, "legend", x + 19, y + 4, words);
    x += needed + 20;
  }
  return legend.length ? y + 12 : 0;
};

/** A row or a point that a pointer or the keyboard brings up. */
const addRow = (svg, row, kind = "row") =>
  add(svg, "g", { class: kind, role: "img", "aria-label": row.words.join(", "), "data-words": row.words.join("\n") });
const addTouch = (group, x, y, width, height) => add(group, "rect", { class: "touch", x, y, width, height });

/** Marks of each row along one axis: logarithmic, or every sample in percent of the middle. */
const drawRows = (svg, chart, width, isWide) => {
  const areSamples = chart.kind === "strips";
  const left = areSamples ? 0.31 * width : 0.375 * width;
  const [from, to] = isWide ? [left, width - (areSamples ? 8 : 160)] : [8, width - 8];
  const columns = isWide ? [width - 74, width - 2] : [width - 64, width - 2];
  const height = isWide ? (areSamples ? 26 : 23) : (areSamples ? 42 : 38);
  const groupHeight = isWide ? 12 : 34;
  const numbers = chart.rows.flatMap((row) => row.marks.flatMap((mark) => [mark.at, ...(mark.interval ?? [])]));
  // One outlier must not squeeze all others together.
  const reach = Math.min(1.1 * Math.max(1, ...numbers.filter(Number.isFinite).map(Math.abs)), 25);
  const scale = areSamples ? linearScale(reach, from, to) : logScale([...numbers, chart.reference?.[0]], from, to);

  const top = drawLegend(svg, chart.legend, width) + 58;
  const starts = chart.rows.map((row, index) => row.group && row.group !== chart.rows[index - 1]?.group);
  const bottom = top + groupHeight * starts.filter(Boolean).length + height * chart.rows.length + 6;
  write(svg, "axis", from, top - 34, chart.axis);
  if (isWide) chart.values.forEach(([head], index) => write(svg, "axis", columns[index], top - 14, head.replace(" ms", ""), "end"));
  for (const tick of scale.ticks(isWide ? 64 : 52)) {
    const x = scale.at(tick);
    line(svg, areSamples && tick === 0 ? "reference" : "grid", x, top - 6, x, bottom);
    const words = areSamples && tick > 0 ? `+${shortly(tick)}` : shortly(tick);
    write(svg, "tick", x, top - 14, words, "middle");
    if (!areSamples) write(svg, "tick", x, bottom + 16, words, "middle");
  }
  const [reference, name] = chart.reference ?? [];
  const zero = scale.at(reference);
  if (zero !== undefined) {
    line(svg, "reference", zero, top - 6, zero, bottom);
    write(svg, "reference-name", Math.max(from + 30, Math.min(zero, to - 30)), bottom + 31, name, "middle");
  }

  let y = top;
  chart.rows.forEach((row, index) => {
    if (starts[index]) {
      y += groupHeight;
      const rule = y - (isWide ? 6 : 28);
      line(svg, "rule", 0, rule, width, rule);
      const name = fitting(row.group, isWide ? 134 : width, { weight: 700 });
      write(svg, "group", 0, isWide ? y + height / 2 + 4 : y - 6, name);
    }
    const group = addRow(svg, row);
    addTouch(group, 0, y, width, height);
    const start = isWide && row.group ? 140 : 0;
    const room = isWide ? from - start - 8 : areSamples ? width : 200;
    const [textY, markY] = isWide ? [y + height / 2 + 4, y + height / 2] : [y + 14, y + (areSamples ? 29 : 27)];
    drawLabel(group, row, start, textY, room);
    row.values.forEach((value, index) => write(group, "value", columns[index], textY, value, "end"));
    const ours = row.marks.find((mark) => ["ours", "approximate"].includes(mark.shape));
    const end = ours && scale.at(ours.at);
    if (zero !== undefined && end !== undefined) line(group, "stem", zero, markY, end, markY);
    for (const mark of row.marks) drawMark(group, mark, scale, markY);
    y += height;
  });
  return bottom + (areSamples ? 12 : 36);
};

const drawLabel = (group, row, x, y, room) => {
  const text = write(group, "label", x, y, "");
  const name = fitting(row.label, room, { weight: row.detail ? 700 : 400 });
  add(text, "tspan", row.detail ? { class: "name" } : {}, name);
  const left = room - widthOf(name, 700) - 6;
  if (row.detail) add(text, "tspan", { class: "detail", dx: 6 }, fitting(row.detail, left, { keep: "beginning" }));
};

const drawMark = (group, mark, scale, y) => {
  const [low, high] = (mark.interval ?? []).map(scale.at);
  if (mark.shape === "sample") {
    if (low < high) add(group, "rect", { class: "interval", x: low, y: y - 7, width: high - low, height: 14 });
    const x = scale.at(mark.at);
    if (x === undefined) return;
    const side = 5 * Math.sign(mark.at);
    if (Math.abs(mark.at) > scale.reach) polygon([side, 0], [0, -4], [0, 4])(group, "beyond", x, y);
    else stroke(group, "sample", x, y);
    return;
  }
  // Shorter than the mark is wide, it would only blur it.
  if (Math.abs(high - low) > 6) {
    line(group, "whisker", low, y, high, y);
    for (const end of [low, high]) line(group, "whisker", end, y - 4, end, y + 4);
  }
  const x = scale.at(mark.at);
  if (x !== undefined) SHAPES[mark.shape](group, mark.shape, x, y);
};

let patterns = 0;
/** A bar for each row from zero; each group has a scale of its own. */
const drawBars = (svg, chart, width, isWide) => {
  const [from, most] = isWide ? [230, width - 520] : [0, width - 18];
  const [height, thick] = isWide ? [28, 18] : [46, 14];
  const hatch = add(svg, "pattern", {
    id: `hatch-${patterns++}`, width: 5, height: 5,
    patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
  });
  line(hatch, "hatch", 2.5, 0, 2.5, 5);
  let y = 0;
  chart.rows.forEach((row, index) => {
    if (index === 0 || row.group !== chart.rows[index - 1].group) {
      write(svg, "group", 0, y + 28, row.group);
      y += 42;
    }
    const lengths = chart.rows.filter((it) => it.group === row.group).map((it) => it.marks[0]?.at ?? 0);
    const group = addRow(svg, row);
    addTouch(group, 0, y, width, height);
    const [textY, barY] = isWide ? [y + 18.5, y + 5] : [y + 14, y + 21];
    const [mark] = row.marks;
    const length = mark ? (most * mark.at) / Math.max(...lengths) : 0;
    const kind = mark?.shape === "bar-ours" ? "label name" : "label";
    const room = isWide ? from - 14 : width - widthOf(row.text) - 12;
    write(group, kind, 0, textY, fitting(row.label, room, { weight: 600 }));
    if (mark) {
      // Thinner than a pixel it would look as if there were none.
      const bar = { x: from, y: barY, width: Math.max(length, 1.5), height: thick };
      add(group, "rect", { class: mark.shape, ...bar });
      if (mark.shape === "bar-hatched") add(group, "rect", { fill: `url(#${hatch.id})`, ...bar });
    }
    if (isWide) write(group, kind, from + length + 9, textY, row.text);
    else write(group, kind, width, textY, row.text, "end");
    y += height;
  });
  return y + 6;
};

/** Arithmetic intensity against performance, both logarithmic, under the ceilings that were measured. */
const drawRoofline = (svg, chart, width, isWide) => {
  const [left, right] = [isWide ? 64 : 44, width - 8];
  const top = drawLegend(svg, chart.legend, width) + 32;
  const bottom = top + (isWide ? 460 : 380);
  const marks = chart.rows.flatMap((row) => row.marks);
  const flat = chart.roofs.filter((roof) => roof.level === null).map((roof) => roof.rate);
  const steep = chart.roofs.filter((roof) => roof.level !== null).map((roof) => roof.rate);
  // So far across that the lowest flat roof meets the lowest bandwidth, and the highest has a beginning.
  const corners = flat.length
    ? [Math.min(...flat) / Math.min(...steep), (2.5 * Math.max(...flat)) / Math.max(...steep)] : [];
  const across = marks.map((mark) => mark.at);
  const x = logScale([...across, ...corners], left, right);
  // With room for a roof's name where no flat roof makes room above it.
  const names = steep.map((rate) => 4 * rate * Math.min(...across));
  const y = logScale([...marks.map((mark) => mark.height), ...flat, ...names], bottom, top);
  for (const tick of x.ticks(isWide ? 80 : 56)) {
    line(svg, "grid", x.at(tick), top, x.at(tick), bottom);
    write(svg, "tick", x.at(tick), bottom + 16, shortly(tick), "middle");
  }
  for (const tick of y.ticks(48)) {
    line(svg, "grid", left, y.at(tick), right, y.at(tick));
    const words = tick >= 1e6 ? `${shortly(tick / 1e6)} P` : tick >= 1e3 ? `${shortly(tick / 1e3)} T` : `${shortly(tick)} G`;
    write(svg, "tick", left - 8, y.at(tick) + 4, words, "end");
  }
  write(svg, "axis", right, bottom + 36, "arithmetic intensity (FLOP/byte)", "end");
  write(svg, "axis", 0, top - 10, "performance (FLOP/s)");
  for (const roof of chart.roofs) drawRoof(svg, roof, x, y, { flat, steep, right, isWide });
  // What is suspicious lies on top.
  const isSuspicious = (row) => Number(row.marks[0].suspicious ?? false);
  const ordered = chart.rows.toSorted((a, b) => isSuspicious(a) - isSuspicious(b));
  for (const row of ordered) {
    const [mark] = row.marks;
    const [across, up] = [x.at(mark.at), y.at(mark.height)];
    if (across === undefined || up === undefined) continue;
    const group = addRow(svg, row);
    circle(9)(group, "touch", across, up);
    SHAPES[mark.shape](group, mark.shape, across, up);
    if (mark.suspicious) circle(9)(group, "suspicious", across, up);
  }
  return bottom + 44;
};

const drawRoof = (svg, roof, x, y, { flat, steep, right, isWide }) => {
  const rate = Math.log10(roof.rate);
  if (roof.level === null) {
    const begin = steep.length ? Math.max(x.low, rate - Math.log10(Math.max(...steep))) : x.low;
    const height = y.atLog(rate);
    line(svg, "roof flat", x.atLog(Math.min(begin, x.high)), height, right, height);
    write(svg, "roof-name", right, height - 6, `${roof.words} · ${roof.probe}`, "end");
    return;
  }
  // Performance, the rate times the intensity, is a straight line between logarithms; cut to what the axes show.
  const highest = flat.length ? Math.min(y.high, Math.log10(Math.max(...flat))) : y.high;
  const [begin, end] = [Math.max(x.low, y.low - rate), Math.min(x.high, highest - rate)];
  if (begin >= end) return;
  const place = (log) => [x.atLog(log), y.atLog(log + rate)];
  const [[x1, y1], [x2, y2]] = [place(begin), place(end)];
  line(svg, `roof at-${roof.level}`, x1, y1, x2, y2);
  const angle = Math.atan2(y1 - y2, x2 - x1);
  // To the left of the flat roofs' names, which stand at the right end.
  const [nameX, nameY] = place(Math.min(end, x.low + 0.58 * (x.high - x.low)));
  const turn = `translate(${nameX - 6 * Math.sin(angle)} ${nameY - 6 * Math.cos(angle)}) rotate(${(-angle * 180) / Math.PI})`;
  const words = isWide ? `${roof.words} · ${roof.probe}` : roof.words;
  add(svg, "text", { class: "roof-name", "text-anchor": "end", transform: turn }, words);
};

/** A description whose rows have the words and numbers of the table's. */
const readChart = (figure) => {
  const chart = JSON.parse(figure.dataset.chart);
  const table = figure.parentElement.querySelector("table");
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const cells = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => {
    const detail = cell.querySelector("small")?.textContent ?? "";
    return [cell.textContent.slice(0, cell.textContent.length - detail.length), detail];
  }));
  const cell = (row, head) => cells[row.of][heads.indexOf(head)] ?? ["", ""];
  for (const row of chart.rows) {
    row.group = chart.group && cell(row, chart.group)[0];
    [row.label, row.detail] = [0, 1].map((part) => chart.labels.map((head) => cell(row, head)[part]).join(" ").trim());
    row.values = chart.values.map(([head, unit]) => `${cell(row, head)[0]}${unit}`);
    const facts = heads.filter((head) => head !== chart.group && !chart.labels.includes(head) && !/^–?$/.test(cell(row, head)[0]));
    const said = facts.map((head) => `${head}: ${cell(row, head).filter(Boolean).join(" · ")}`);
    row.words = [[row.group, row.label].filter(Boolean).join(" "), row.detail, ...said].filter(Boolean);
  }
  return chart;
};

const DRAWN = { dots: drawRows, strips: drawRows, bars: drawBars, roofline: drawRoofline };
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = readChart(figure);
  let drawn = 0;
  const draw = () => {
    const width = figure.clientWidth;
    if (width === drawn) return;
    drawn = width;
    const svg = figure.querySelector("svg");
    svg.replaceChildren();
    const height = DRAWN[chart.kind](svg, chart, width, width >= 640);
    svg.setAttribute("viewBox", `0 0 ${width} ${Math.round(height)}`);
    svg.querySelectorAll(".row").forEach((row, index) => row.setAttribute("tabindex", index === 0 ? "0" : "-1"));
  };
  draw();
  new ResizeObserver(draw).observe(figure);
}
