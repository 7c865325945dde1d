// The page of a comparison: for each federation its table, the curves, the paper's figures beside ours,
// and the clusters of each method. Texts are always set as text, never as markup.
"use strict";

(() => {
  const $ = (selector) => document.querySelector(selector);
  const root = document.documentElement;
  const contents = JSON.parse($("#contents").textContent);
  const drawings = []; // [box, from a look to options]

  function make(tag, text, name) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (name) element.className = name;
    return element;
  }

  function look() {
    const style = getComputedStyle(root);
    const names = ["sheet", "ink", "soft", "line", "grid", "accent", "late", "failed", "concept"];
    const found = Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
    return { ...found, font: getComputedStyle(document.body).fontFamily, narrow: innerWidth < 520 };
  }

  // --- charts -----------------------------------------------------------------------------------

  const methodColour = (index) => PALETTE[index % PALETTE.length];
  const methodLine = (index) => ["solid", "dashed", "dotted"][Math.floor(index / PALETTE.length) % 3];
  const share = { formatter: (v) => Math.round(100 * v) + "%" };

  function curves(l, column, scope) {
    const drawn = column.lines.map((line, index) => [line, index]).filter(([line]) => line.curves[scope].length);
    if (!drawn.length) return null;
    const last = Math.max(...drawn.flatMap(([line]) => line.curves[scope].map((point) => point[0])));
    // Room for the legend: about so many pixels of names, in rows of so many.
    const names = drawn.reduce((sum, [line]) => sum + 40 + 6.2 * line.row.length, 0);
    const many = 18 * Math.ceil(names / (l.narrow ? 270 : 440));
    return {
      height: 240 + many,
      ...base(l, "axis", (points) => tip("round " + points[0].axisValue, [...points]
        .sort((a, b) => b.value[1] - a.value[1]).map((p) => [p.seriesName, percent(p.value[1]), p.color]))),
      legend: { ...legend(l), type: "plain" },
      grid: { left: 8, right: 18, top: many + 14, bottom: 8, containLabel: true },
      xAxis: roundAxis(l, last),
      yAxis: valueAxis(l, { scale: true, axisLabel: share }),
      series: drawn.map(([line, index]) => ({
        type: "line", name: line.row, data: line.curves[scope], color: methodColour(index), symbolSize: 4,
        showSymbol: line.curves[scope].length < 20, lineStyle: { width: 2, type: methodLine(index) },
      })),
    };
  }

  // Horizontal bars, one group for each method; `series` has a name, a colour and a value by line.
  function bars(l, column, series, format) {
    const shown = column.lines.filter((line) => series.some((one) => one.value(line) !== null));
    if (!shown.length) return null;
    const group = 14 * series.length + 12;
    return {
      height: 70 + group * shown.length,
      ...base(l, "axis", (points) => tip(points[0].name, points.filter((p) => p.value !== null)
        .map((p) => [p.seriesName, format(p.value), p.color]))),
      legend: series.length > 1 ? legend(l) : undefined,
      grid: { left: 8, right: 52, top: series.length > 1 ? 30 : 8, bottom: 8, containLabel: true },
      xAxis: valueAxis(l, { axisLabel: { ...share, hideOverlap: true } }),
      yAxis: categories(l, shown.map((line) => line.row), { inverse: true, axisLabel: { interval: 0, ...clip(l) } }),
      series: series.map((one) => ({
        type: "bar", name: one.name, color: one.colour, barMaxWidth: 12, data: shown.map(one.value),
        label: { show: true, position: "right", color: l.ink, fontSize: 11,
                 formatter: (p) => (p.value === null ? "" : format(p.value)) },
      })),
    };
  }

  const signed = (v) => (v > 0 ? "+" : "") + (100 * v).toFixed(1);

  function beside(l, column, scope) {
    if (!column.lines.some((line) => line.paper && line.paper[scope] !== null)) return null;
    return bars(l, column, [
      { name: "here", colour: l.accent, value: (line) => line[scope] },
      { name: "the paper", colour: l.soft, value: (line) => (line.paper ? line.paper[scope] : null) },
    ], percent);
  }

  // --- the page ---------------------------------------------------------------------------------

  function figure(title, about, draw) {
    const element = make("figure");
    const caption = make("figcaption");
    caption.append(make("b", title), make("span", about, "about"));
    const box = make("div", undefined, "chart");
    element.append(caption, box);
    drawings.push([box, draw]);
    return element;
  }

  function group(name, figures) {
    const element = make("div", undefined, name);
    element.append(...figures);
    return element;
  }

  function table(column) {
    const element = make("table");
    const head = element.createTHead().insertRow();
    for (const name of ["method", ...column.heads]) head.append(make("th", name));
    const body = element.createTBody();
    for (const line of column.lines) {
      const row = body.insertRow();
      row.append(make("td", line.row, "whole"), ...line.cells.map((text) => make("td", text)));
    }
    return group("scroll", [element]);
  }

  function clusters(line) {
    const element = make("div", undefined, "method");
    const rand = line.rand === null ? "" : ` (adjusted Rand index ${line.rand.toFixed(2)})`;
    element.append(make("h3", line.row + rand));
    const c = { population: line.population };
    const kinds = [["classes", "By class"], ["styles", "By style"], ["concepts", "By concept"]];
    element.append(group("trio", kinds.filter(([name]) => line.population[name].rows.length > 0)
      .map(([name, title]) => figure(title, "samples of each cluster",
        (l) => bubbleChart(l, c, null, line.population[name])))));
    return element;
  }

  function section(column) {
    const element = make("section");
    element.append(make("h2", column.name), table(column), make("p", contents.meaning, "soft small"));
    element.append(group("pair", ["local", "global"].map((scope) => figure(
      scope === "local" ? "Local accuracy" : "Global accuracy", "over the rounds, mean of the seeds",
      (l) => curves(l, column, scope)))));
    element.append(group("pair", ["local", "global"].map((scope) => figure(
      scope === "local" ? "Local accuracy and the paper's" : "Global accuracy and the paper's", "",
      (l) => beside(l, column, scope)))));
    element.append(group("pair", [
      figure("Gain over FedAvg", "in global accuracy, percentage points", (l) => (column.lines.some((line) => line.gain !== null)
        ? bars(l, column, [{ name: "gain", colour: l.accent, value: (line) => line.gain }], signed) : null)),
      figure("Gap", "local minus global accuracy, percentage points", (l) => bars(l, column,
        [{ name: "gap", colour: l.accent, value: (line) => line.gap }], signed)),
    ]));
    const pictured = column.lines.filter((line) => line.population.clusters.length > 1);
    if (pictured.length) {
      element.append(make("h2", "Who is in which cluster"),
        make("p", `Samples of the training clients at the end of the run with seed ${pictured[0].seed}. Clusters that separate by concept have one large circle in each row of the last picture, and equal circles in the others.`, "soft"),
        ...pictured.map(clusters));
    }
    return element;
  }

  function sentences(place, texts) {
    $(place).hidden = !texts.length;
    $(place + " ul").replaceChildren(...texts.map((text) => make("li", text)));
  }

  function drawAll() {
    const l = look();
    for (const [box, draw] of drawings) {
      const before = echarts.getInstanceByDom(box);
      if (before) before.dispose();
      box.closest("figure").hidden = false; // or it would have no width
      const option = draw(l);
      box.closest("figure").hidden = !option;
      if (!option) continue;
      box.style.height = (option.height || 240) + "px";
      delete option.height;
      echarts.init(box, null, { renderer: "canvas" }).setOption(option);
    }
    root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1);
  }

  $("#name").textContent = contents.title;
  $("#stands").textContent = contents.stands;
  $("#outcomes").replaceChildren(...contents.outcomes.map((text) => make("p", text, "outcome")));
  $("#facts").replaceChildren(...contents.facts.map(([label, text]) => {
    const pair = make("div");
    pair.append(make("dt", label), make("dd", text));
    return pair;
  }));
  sentences("#differs", contents.differs);
  sentences("#ended", contents.ended);
  $("#columns").append(...contents.columns.map(section));

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const nameTheme = () => { $("#theme").textContent = isDark() ? "Light" : "Dark"; };
  $("#theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
    drawAll();
  });
  let waiting = 0;
  const again = () => { clearTimeout(waiting); waiting = setTimeout(() => { nameTheme(); drawAll(); }, 150); };
  addEventListener("resize", again);
  dark.addEventListener("change", again);
  nameTheme();
  drawAll();
})();
