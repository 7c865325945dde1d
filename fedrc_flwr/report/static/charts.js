// From a run's contents to the options of its charts. Nothing here touches the page: texts of the
// run reach the library as plain text only, and tooltips are built from text nodes by `tip`.
"use strict";

// Told apart by people with any colour vision; a cluster keeps its colour everywhere.
const PALETTE = $palette;
const clusterColour = (id) => PALETTE[id % PALETTE.length];
const percent = (v) => (100 * v).toFixed(1) + "%";
const plainNumber = (v) => Number(v.toPrecision(4)).toLocaleString("en");

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let step = 0;
  while (value >= 1000 && step < units.length - 1) { value /= 1000; step += 1; }
  return Number(value.toPrecision(3)) + " " + units[step];
}

function fade(hex, alpha) {
  const part = (i) => parseInt(hex.slice(i, i + 2), 16);
  return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
}

// Black or white, whichever reads better on a cluster's colour.
function onColour(id) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(clusterColour(id).slice(i, i + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 150 ? "#000" : "#fff";
}

function tip(title, rows) {
  const box = document.createElement("div");
  box.className = "tip";
  const head = document.createElement("b");
  head.textContent = title;
  box.append(head);
  const table = document.createElement("table");
  for (const [label, value, colour] of rows) {
    const row = table.insertRow();
    const first = row.insertCell();
    if (colour) {
      const dot = document.createElement("span");
      dot.className = "dot";
      dot.style.background = colour;
      first.append(dot);
    }
    first.append(String(label));
    row.insertCell().textContent = String(value);
  }
  box.append(table);
  return box;
}

// --- what all charts share ----------------------------------------------------------------------

function base(look, trigger, formatter) {
  return {
    animation: false,
    aria: { enabled: true },
    textStyle: { fontFamily: look.font, color: look.ink },
    tooltip: {
      trigger, formatter, confine: true, backgroundColor: look.sheet, borderColor: look.line,
      textStyle: { color: look.ink, fontSize: 13 }, transitionDuration: 0,
      axisPointer: { lineStyle: { color: look.soft } },
    },
    grid: { left: 8, right: 18, top: 34, bottom: 8, containLabel: true },
  };
}

const legend = (look, extra) => ({
  top: 0, left: 0, type: "scroll", itemWidth: 14, itemHeight: 8, icon: "roundRect",
  textStyle: { color: look.soft }, pageTextStyle: { color: look.soft }, pageIconColor: look.soft,
  ...extra,
});

const valueAxis = (look, extra) => ({
  type: "value", splitLine: { lineStyle: { color: look.grid } }, axisLine: { show: false },
  axisTick: { show: false }, ...extra, axisLabel: { color: look.soft, ...extra.axisLabel },
});

const roundAxis = (look, last) => valueAxis(look, {
  min: 1, max: Math.max(2, last), minInterval: 1, splitLine: { show: false },
  axisLabel: { showMinLabel: true, hideOverlap: true },
});

const categories = (look, names, extra) => ({
  type: "category", data: names, axisLine: { show: false }, axisTick: { show: false },
  splitLine: { show: false }, ...extra, axisLabel: { color: look.soft, ...(extra && extra.axisLabel) },
});

const cut = (text, most) => (text.length > most ? text.slice(0, most - 1) + "\u2026" : text);
const clip = (look) => ({ formatter: (text) => cut(String(text), look.narrow ? 12 : 22) });

// --- over rounds --------------------------------------------------------------------------------

const LINES = ["solid", "solid", "dashed", "dotted"];

function lines(look, series, last, format, changes) {
  const colours = [look.accent, look.failed, look.accent, look.soft];
  const known = ["training clients", "observers", "training clients, fine-tuned", "while training"];
  return {
    ...base(look, "axis", (points) => tip("round " + points[0].axisValue,
      points.map((p) => [p.seriesName, format(p.value[1]), p.color]))),
    legend: series.length > 1 ? legend(look) : undefined,
    xAxis: roundAxis(look, last),
    yAxis: valueAxis(look, { scale: true, axisLabel: { formatter: format } }),
    series: series.map((one, index) => {
      const at = known.includes(one.name) ? known.indexOf(one.name) : index;
      return {
        type: "line", name: one.name, data: one.points, showSymbol: one.points.length < 40,
        symbolSize: 5, lineStyle: { width: 2, type: LINES[at % 4] }, color: colours[at % 4],
        markLine: index === 0 ? marks(look, changes, false) : undefined,
      };
    }),
  };
}

// Upright lines where clusters went.
function marks(look, changes, named) {
  const byRound = new Map();
  for (const change of changes) {
    const text = change.into === null ? change.cluster + " out" : change.cluster + " \u2192 " + change.into;
    byRound.set(change.round, [...(byRound.get(change.round) || []), text]);
  }
  return {
    silent: true, symbol: "none", animation: false,
    lineStyle: { color: look.soft, type: "dashed", width: 1, opacity: named ? 0.9 : 0.5 },
    label: { show: named, color: look.soft, fontSize: 11, distance: 4,
             formatter: (p) => (p.data.name || "") },
    data: [...byRound].map(([round, texts]) => ({ xAxis: round, name: cut(texts.join(", "), 24) })),
  };
}

function sharesChart(look, c, picked) {
  const { shares, changes, last_round } = c.history;
  const ids = Object.keys(shares).map(Number);
  if (!ids.length || !shares[ids[0]].length) return null;
  return {
    ...base(look, "axis", (points) => tip("round " + points[0].axisValue, [
      ...points.filter((p) => p.value[1] > 0).map((p) => [p.seriesName, percent(p.value[1]), p.color]).reverse(),
      ...changes.filter((g) => g.round === points[0].value[0]).map((g) => [g.text, ""]),
    ])),
    legend: legend(look),
    grid: { left: 8, right: 18, top: 56, bottom: 8, containLabel: true },
    xAxis: roundAxis(look, last_round),
    yAxis: valueAxis(look, { min: 0, max: 1, axisLabel: { formatter: (v) => Math.round(100 * v) + "%" } }),
    series: ids.map((id, index) => ({
      type: "line", name: "cluster " + id, data: shares[id], stack: "all", showSymbol: false,
      color: clusterColour(id), lineStyle: { width: 0 },
      areaStyle: { opacity: picked === null || picked === id ? 0.85 : 0.15 },
      markLine: index === ids.length - 1 ? marks(look, changes, true) : undefined,
    })),
  };
}

function failuresChart(look, c, picked) {
  const told = c.history.failures;
  const cluster = new Map(c.population.clients.map((client) => [client.name, client.cluster]));
  const shown = told.clients.map((_, i) => i).filter((i) => picked === null || cluster.get(told.clients[i]) === picked);
  if (!shown.length) return null;
  const place = new Map(shown.map((i, row) => [i, row]));
  const kinds = [["late", true, look.late, "circle"], ["failed", false, look.failed, "triangle"]];
  const high = rowHeight(shown.length, 22);
  return {
    height: 70 + high * shown.length,
    ...base(look, "item", (p) => tip(told.clients[p.value[2]], [["round", p.value[0]], [told.reasons[p.value[3]], ""]])),
    legend: legend(look),
    xAxis: roundAxis(look, c.history.last_round),
    yAxis: categories(look, shown.map((i) => told.clients[i]), {
      inverse: true, splitLine: { show: high >= 14, lineStyle: { color: look.grid } },
      axisLabel: { show: high >= 11, interval: 0, ...clip(look) },
    }),
    series: kinds.map(([name, late, colour, symbol]) => ({
      type: "scatter", name, color: colour, symbol, symbolSize: Math.max(3, Math.min(9, high - 4)),
      data: told.points.filter((p) => place.has(p[1]) && told.late[p[2]] === late)
        .map(([round, client, reason]) => [round, place.get(client), client, reason]),
    })),
  };
}

// --- discovery ----------------------------------------------------------------------------------

// Clients against clients, sorted by group: blue where two mean the same by their labels, red where
// they contradict each other.
function evidenceChart(look, c) {
  const found = c.history.discovery;
  const count = found.clients.length;
  if (!count) return null;
  const sizes = found.evidence.flat().map(Math.abs).sort((a, b) => a - b);
  const most = Math.max(1, sizes[Math.floor(0.9 * (sizes.length - 1))]);
  const names = look.narrow ? 84 : 150;
  const high = Math.max(4, Math.min(22, Math.floor(720 / count)));
  const edges = found.groups.flatMap((group, i) => (i && group !== found.groups[i - 1] ? [i] : []));
  return {
    height: 40 + high * count,
    ...base(look, "item", (p) => tip(found.clients[p.value[1]] + " and " + found.clients[p.value[0]], [
      ["evidence that they mean the same", p.value[2].toFixed(1) + " nats"],
      ["groups", found.groups[p.value[1]] + " and " + found.groups[p.value[0]]],
    ])),
    grid: { left: names, right: 12, top: 12, bottom: 12 },
    xAxis: categories(look, found.clients, { axisLabel: { show: false } }),
    yAxis: categories(look, found.clients, {
      inverse: true, axisLabel: { show: high >= 11, interval: 0, ...clip(look) },
    }),
    series: [
      {
        type: "custom", name: "evidence", progressive: 0,
        data: found.evidence.flatMap((row, y) => row.map((v, x) => [x, y, v])),
        renderItem: (params, api) => {
          const [width, height] = api.size([1, 1]);
          const [middle, centre] = api.coord([api.value(0), api.value(1)]);
          const left = Math.round(middle - width / 2);
          const top = Math.round(centre - height / 2);
          const gap = (i) => (edges.includes(i + 1) ? 2 : 0);
          const strength = Math.min(1, Math.abs(api.value(2)) / most);
          return {
            type: "rect",
            shape: {
              x: left, y: top,
              width: Math.round(middle + width / 2) - left - gap(api.value(0)),
              height: Math.round(centre + height / 2) - top - gap(api.value(1)),
            },
            style: { fill: fade(api.value(2) < 0 ? "#b3261e" : "#2f6fb3", 0.05 + 0.95 * strength) },
          };
        },
      },
    ],
  };
}

// --- clusters -----------------------------------------------------------------------------------

const rowHeight = (rows, most) => Math.max(3, Math.min(most, Math.floor(1100 / Math.max(1, rows))));

function weightsChart(look, c, picked) {
  const columns = c.population.clusters;
  const rows = c.population.clients.filter((one) => one.weights && (picked === null || one.cluster === picked));
  if (!rows.length) return null;
  const concepts = rows.some((one) => one.concept >= 0);
  const kinds = [...new Set(c.population.clients.map((one) => one.concept).filter((k) => k >= 0))].sort((a, b) => a - b);
  const high = rowHeight(rows.length, 24);
  const gap = high >= 8 ? 2 : 0;
  const box = (api, x, y) => {
    const [width, height] = api.size([1, 1]);
    const [left, middle] = api.coord([x, y]);
    // Whole pixels, or rows without a gap would shine through each other.
    const top = Math.round(middle - height / 2);
    const bottom = Math.round(middle + height / 2);
    return { x: left - width / 2 + 1, y: top, width: width - 2, height: bottom - top - gap };
  };
  const strip = concepts ? 46 : 0;
  const names = look.narrow ? 84 : 150;
  return {
    height: 44 + high * rows.length,
    ...base(look, "item", (p) => {
      const one = rows[p.value[1]];
      const facts = p.seriesIndex === 0
        ? [["weight in cluster " + columns[p.value[0]].id, p.value[2].toFixed(4), clusterColour(columns[p.value[0]].id)]]
        : [];
      if (one.concept >= 0) facts.push(["true concept", one.concept]);
      facts.push(["samples", one.samples]);
      return tip(one.name, facts);
    }),
    grid: [
      { left: names, right: 12 + strip, top: 34, bottom: 6 },
      { width: concepts ? 30 : 0, right: 12, top: 34, bottom: 6 },
    ],
    xAxis: [
      categories(look, columns.map((k) => (look.narrow ? "" : "cluster ") + k.id), { position: "top" }),
      categories(look, ["concept"], { gridIndex: 1, position: "top", show: concepts }),
    ],
    yAxis: [
      categories(look, rows.map((one) => one.name), {
        inverse: true, axisLabel: { show: high >= 11, interval: 0, ...clip(look) },
      }),
      categories(look, rows.map((_, i) => String(i)), { gridIndex: 1, inverse: true, axisLabel: { show: false } }),
    ],
    series: [
      {
        type: "custom", name: "weight", progressive: 0,
        data: rows.flatMap((one, y) => one.weights.map((w, x) => [x, y, w])),
        renderItem: (params, api) => {
          const weight = api.value(2);
          return {
            type: "rect", shape: { ...box(api, api.value(0), api.value(1)), r: gap ? 3 : 0 },
            style: { fill: fade(clusterColour(columns[api.value(0)].id), 0.06 + 0.94 * weight) },
            textConfig: { position: "inside" },
            textContent: { style: {
              text: high >= 16 && weight >= 0.005 ? weight.toFixed(2) : "", fontSize: 11,
              fill: weight > 0.45 ? onColour(columns[api.value(0)].id) : look.ink,
            } },
          };
        },
      },
      {
        type: "custom", name: "true concept", xAxisIndex: 1, yAxisIndex: 1, progressive: 0,
        data: concepts ? rows.map((one, y) => [0, y, one.concept]) : [],
        renderItem: (params, api) => {
          const concept = api.value(2);
          const shade = concept < 0 ? 0 : 0.12 + (0.5 * kinds.indexOf(concept)) / Math.max(1, kinds.length - 1);
          return {
            type: "rect", shape: box(api, 0, api.value(1)), style: { fill: `rgba(${look.concept}, ${shade})` },
            textConfig: { position: "inside" },
            textContent: { style: {
              text: high >= 16 && concept >= 0 ? String(concept) : "", fontSize: 11,
              fill: shade > 0.4 ? look.sheet : look.ink,
            } },
          };
        },
      },
    ],
  };
}

function bubbleChart(look, c, picked, table) {
  const columns = c.population.clusters;
  if (!table.rows.length) return null;
  const most = Math.max(...table.values.flat(), 1e-9);
  const room = Math.max(...["concepts", "styles", "classes"].map((name) => c.population[name].rows.length));
  const high = Math.max(6, Math.min(34, Math.floor(900 / table.rows.length)));
  const largest = Math.max(8, Math.min(34, 1.1 * high));
  return {
    height: Math.max(180, 44 + high * (room <= 12 ? room : table.rows.length)), // a row of equals
    ...base(look, "item", (p) => tip(table.rows[p.value[1]], [
      ["cluster " + columns[p.value[0]].id, plainNumber(p.value[2]) + " samples", p.color],
      ["of all its samples", percent(p.value[2] / Math.max(1e-9, table.values[p.value[1]].reduce((a, b) => a + b, 0)))],
    ])),
    grid: { left: 8, right: 12, top: 30, bottom: 8, containLabel: true },
    xAxis: categories(look, columns.map((k) => (columns.length < 4 ? "cluster " : "") + k.id), { position: "top" }),
    yAxis: categories(look, table.rows, {
      inverse: true, splitLine: { show: high >= 12, lineStyle: { color: look.grid } },
      axisLabel: { interval: high >= 12 ? 0 : "auto", ...clip(look) },
    }),
    series: [{
      type: "scatter",
      symbolSize: (value) => (value[2] > 0 ? Math.max(2, largest * Math.sqrt(value[2] / most)) : 0),
      data: table.values.flatMap((row, y) => row.map((value, x) => ({
        value: [x, y, value],
        itemStyle: {
          color: clusterColour(columns[x].id),
          opacity: picked === null || picked === columns[x].id ? 0.85 : 0.12,
        },
      }))),
    }],
  };
}

// Samples by label (rows) and predicted label, the more the darker; right answers on the diagonal.
function confusionOption(look, triples, labels) {
  if (!triples || !triples.length) return null;
  const held = new Map();
  for (const [label, , samples] of triples) held.set(label, (held.get(label) || 0) + samples);
  const count = labels.length;
  // As high as the figures beside it, or, with many labels, on a row of its own.
  const side = count <= 12 ? Math.min(64, Math.floor(200 / count)) : Math.max(5, Math.min(26, Math.floor(620 / count)));
  const shown = side >= 16;
  return {
    height: 76 + side * count,
    ...base(look, "item", (p) => tip(`label ${labels[p.value[1]]}`, [
      [`predicted as ${labels[p.value[0]]}`, `${p.value[2]} of ${held.get(p.value[1])}`],
      ["of this label", percent(p.value[2] / held.get(p.value[1]))],
    ])),
    grid: { left: 8, right: 16, top: 34, bottom: 26, containLabel: true },
    xAxis: categories(look, labels, {
      position: "top", name: "predicted", nameLocation: "middle", nameGap: -(side * count + 18),
      nameTextStyle: { color: look.soft },
      axisLabel: { interval: side >= 12 ? 0 : "auto", rotate: labels.some((l) => l.length > 3) && count > 4 ? 40 : 0, ...clip(look) },
    }),
    yAxis: categories(look, labels, {
      inverse: true, axisLabel: { interval: side >= 12 ? 0 : "auto", ...clip(look) },
    }),
    series: [{
      type: "custom", progressive: 0, data: triples.map(([label, predicted, samples]) => [predicted, label, samples]),
      renderItem: (params, api) => {
        const [width, height] = api.size([1, 1]);
        const [x, y] = api.coord([api.value(0), api.value(1)]);
        const share = api.value(2) / held.get(api.value(1));
        const right = api.value(0) === api.value(1);
        return {
          type: "rect", shape: { x: x - width / 2 + 1, y: y - height / 2 + 1, width: width - 2, height: height - 2, r: 2 },
          style: { fill: fade(right ? "#4477aa" : "#ee6677", 0.12 + 0.88 * share) },
          textConfig: { position: "inside" },
          textContent: { style: { text: shown ? String(api.value(2)) : "", fontSize: 11,
            fill: share > 0.55 ? "#fff" : look.ink } },
        };
      },
    }],
  };
}

function confusionChart(look, c, picked) {
  const sums = new Map();
  for (const k of c.population.clusters) {
    if (picked !== null && k.id !== picked) continue;
    for (const [label, predicted, samples] of k.confusion) {
      const at = label + " " + predicted;
      sums.set(at, [label, predicted, (sums.has(at) ? sums.get(at)[2] : 0) + samples]);
    }
  }
  return confusionOption(look, [...sums.values()], c.population.labels);
}

// --- one client ----------------------------------------------------------------------------------

function clientWeights(look, c, picked, chosen) {
  const course = chosen && c.history.courses[chosen.name];
  if (!course || !Object.keys(course.weights).length) return null;
  return {
    ...base(look, "axis", (points) => tip("round " + points[0].axisValue,
      points.map((p) => [p.seriesName, p.value[1].toFixed(3), p.color]))),
    legend: legend(look),
    xAxis: roundAxis(look, c.history.last_round),
    yAxis: valueAxis(look, { min: 0, max: 1 }),
    series: Object.keys(course.weights).map((id) => ({
      type: "line", name: "cluster " + id, data: course.weights[id], color: clusterColour(Number(id)),
      showSymbol: course.weights[id].length === 1, symbolSize: 5, lineStyle: { width: 2 },
    })),
  };
}

function clientAccuracy(look, c, picked, chosen) {
  const course = chosen && c.history.courses[chosen.name];
  if (!course || !course.accuracy.length) return null;
  const option = lines(look, [{ name: "accuracy", points: course.accuracy }], c.history.last_round, percent, []);
  const constant = chosen.scores.constant_accuracy;
  if (constant !== undefined) {
    option.series[0].markLine = {
      silent: true, symbol: "none", animation: false, lineStyle: { color: look.soft, type: "dashed" },
      label: { formatter: "constant answer", position: "insideEndTop", color: look.soft, fontSize: 11 },
      data: [{ yAxis: constant }],
    };
    const values = course.accuracy.map((point) => point[1]).concat(constant);
    option.yAxis.min = Math.max(0, Math.floor(10 * Math.min(...values) - 0.5) / 10);
    option.yAxis.max = Math.min(1, Math.ceil(10 * Math.max(...values)) / 10);
  }
  return option;
}

function clientClusters(look, c, picked, chosen) {
  const ids = chosen ? Object.keys(chosen.right) : [];
  if (!ids.length || !chosen.scores.samples) return null;
  return {
    height: 60 + 34 * ids.length,
    ...base(look, "item", (p) => tip(p.name, [["right", `${chosen.right[ids[p.dataIndex]]} of ${chosen.scores.samples}`]])),
    grid: { left: 8, right: 56, top: 8, bottom: 8, containLabel: true },
    xAxis: valueAxis(look, { min: 0, max: 1, axisLabel: { formatter: (v) => Math.round(100 * v) + "%" } }),
    yAxis: categories(look, ids.map((id) => "cluster " + id), { inverse: true }),
    series: [{
      type: "bar", barMaxWidth: 20, label: { show: true, position: "right", color: look.ink, formatter: (p) => percent(p.value) },
      data: ids.map((id) => ({
        value: chosen.right[id] / chosen.scores.samples,
        itemStyle: { color: clusterColour(Number(id)), borderRadius: [0, 3, 3, 0] },
      })),
    }],
  };
}

function priorChart(look, c, picked) {
  const prior = c.population.label_prior;
  if (!prior.length) return null;
  return {
    ...base(look, "axis", (points) => tip("label " + points[0].name,
      points.map((p) => [p.seriesName, percent(p.value), p.color]))),
    legend: legend(look),
    xAxis: categories(look, c.population.labels, { axisLabel: { hideOverlap: true, ...clip(look) } }),
    yAxis: valueAxis(look, { axisLabel: { formatter: (v) => Math.round(100 * v) + "%" } }),
    series: prior.map((row, k) => {
      const id = c.population.clusters[k].id;
      return {
        type: "bar", name: "cluster " + id, data: row, color: clusterColour(id), barMaxWidth: 18,
        itemStyle: { borderRadius: [2, 2, 0, 0], opacity: picked === null || picked === id ? 0.9 : 0.15 },
      };
    }),
  };
}

// --- all of them: element, title, a line about it, what is said where there is nothing -----------

const CHARTS = [
  ["accuracy", "Accuracy", "each client by its own mixture of the models", "Nothing has been evaluated yet.",
    (look, c) => (c.history.accuracy.length ? lines(look, c.history.accuracy, c.history.last_round, percent, c.history.changes) : null)],
  ["loss", "Loss", "cross entropy, in nats", "No round has ended yet.",
    (look, c) => (c.history.loss.length ? lines(look, c.history.loss, c.history.last_round, plainNumber, c.history.changes) : null)],
  ["confusion", "Confusion", "test samples by label (rows) and predicted label",
    "No client sends counts of its predictions.", confusionChart],
  ["client-weights", "Its weights", "over the rounds", "Its weights were not recorded.", clientWeights],
  ["client-accuracy", "Its accuracy", "over the rounds, on its test samples", "It has not been evaluated.", clientAccuracy],
  ["client-clusters", "Its accuracy with each cluster's model alone", "", "It sends no counts of its predictions.", clientClusters],
  ["client-confusion", "Its confusion", "test samples by label (rows) and predicted label",
    "It sends no counts of its predictions, or there are too many clients to show them.",
    (look, c, picked, chosen) => (chosen ? confusionOption(look, chosen.confusion, c.population.labels) : null)],
  ["evidence", "Evidence between the clients", "sorted by group; blue: they mean the same by their labels, red: they contradict each other",
    "Nothing was looked for, or there are too many clients to show it.", evidenceChart],
  ["shares", "Shares of the clusters", "of all samples; dashed: a cluster was removed or merged", "No round has ended yet.", sharesChart],
  ["weights", "Mixture weights", "clients by cluster; the stronger the colour, the larger the weight", "No client has reported yet.", weightsChart],
  ["concepts", "Concepts", "samples by true concept and cluster", "The true concepts of this data are not known.",
    (look, c, picked) => bubbleChart(look, c, picked, c.population.concepts)],
  ["styles", "Styles", "samples by how the inputs look", "The styles of this data are not known.",
    (look, c, picked) => (c.population.styles.rows.some((style) => style !== "none")
      ? bubbleChart(look, c, picked, c.population.styles) : null)],
  ["classes", "Classes", "samples by label and cluster", "No client has reported its labels yet.",
    (look, c, picked) => bubbleChart(look, c, picked, c.population.classes)],
  ["prior", "Label prior", "which part of a cluster's samples has which label", "No client has reported its labels yet.", priorChart],
  ["failures", "Replies that were not used", "which clients failed or were late, and when", "No client failed or was late.", failuresChart],
  ["seconds", "Seconds per round", "", "No round has ended yet.",
    (look, c) => (c.history.seconds.length ? lines(look, c.history.seconds, c.history.last_round, plainNumber, []) : null)],
  ["traffic", "Bytes per round", "arrays on the wire, all clients together", "No round has ended yet.",
    (look, c) => (c.history.traffic.length ? lines(look, c.history.traffic, c.history.last_round, bytes, []) : null)],
  ["epsilon", "Epsilon spent", "on the label counts, by the client that spent most",
    "No epsilon: not every client adds noise to its label counts.",
    (look, c) => (c.history.epsilon.length ? lines(look, c.history.epsilon, c.history.last_round, plainNumber, []) : null)],
];
