// Several runs side by side: what each established, its scores, its course and its clients, on the
// same scales. Texts are always set as text, never as markup.
"use strict";

(() => {
  const $ = (selector) => document.querySelector(selector);
  const root = document.documentElement;
  const runs = JSON.parse($("#contents").textContent);
  const FIGURES = ["accuracy", "loss", "confusion", "shares", "weights"];

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
    return { ...found, font: getComputedStyle(document.body).fontFamily, narrow: true };
  }

  // The range of a figure's values over all runs, so that heights can be compared.
  function range(name) {
    const values = runs.flatMap((run) => run.history[name].flatMap((series) => series.points.map((point) => point[1])));
    return values.length ? [Math.min(...values), Math.max(...values)] : null;
  }

  function column(run) {
    const article = make("article");
    const head = make("div");
    head.append(make("h2", run.name));
    const facts = run.facts.map(([label, text]) => `${label}: ${text}`).join(" \u00b7 ");
    head.append(make("p", facts, "soft"));
    for (const [kind, text] of run.banners) head.append(make("div", text, "banner " + kind));
    if (run.outcome) head.append(make("p", run.outcome, "outcome"));
    const list = make("dl");
    for (const [label, text] of run.figures) {
      const pair = make("div");
      pair.append(make("dt", label), make("dd", text));
      list.append(pair);
    }
    head.append(list);
    article.append(head);
    for (const name of FIGURES) {
      const figure = make("figure", undefined, name);
      const [, title, about, nothing] = CHARTS.find((chart) => chart[0] === name);
      const caption = make("figcaption");
      caption.append(make("b", title), make("span", about, "about"));
      figure.append(caption, make("div", undefined, "chart"), make("p", nothing, "empty"));
      article.append(figure);
    }
    return article;
  }

  function draw(article, run) {
    const rounds = Math.max(...runs.map((one) => one.history.last_round));
    for (const name of FIGURES) {
      const box = article.querySelector(`.${name} .chart`);
      const option = CHARTS.find((chart) => chart[0] === name)[4](look(), run, null, null);
      box.hidden = !option;
      article.querySelector(`.${name} .empty`).hidden = Boolean(option);
      const before = echarts.getInstanceByDom(box);
      if (before) before.dispose();
      if (!option) continue;
      if (name === "accuracy" || name === "loss") {
        const [low, high] = range(name);
        const step = name === "accuracy" ? 0.1 : 10 ** Math.floor(Math.log10(Math.max(high, 1e-9)));
        option.yAxis.min = Math.floor(low / step + 1e-9) * step;
        option.yAxis.max = Math.ceil(high / step - 1e-9) * step;
      }
      if (name !== "weights" && name !== "confusion") option.xAxis.max = Math.max(2, rounds);
      box.style.height = (option.height || 240) + "px";
      delete option.height;
      echarts.init(box, null, { renderer: "canvas" }).setOption(option);
    }
  }

  function fill(section, heads, rows) {
    $(section + " thead tr").replaceChildren(...heads.map((text) => make("th", text)));
    $(section + " tbody").replaceChildren(...rows.map((cells) => {
      const row = make("tr");
      row.append(...cells.map((cell) => (cell instanceof Node ? cell : make("td", cell))));
      return row;
    }));
  }

  function showSettings() {
    const defaults = new Map(runs.flatMap((run) => run.settings.map(([key, , normal]) => [key, normal])));
    const values = runs.map((run) => new Map(run.settings.map(([key, value]) => [key, value])));
    // A run has no value for a setting of an algorithm that is not its own.
    const value = (run, i, key, normal) =>
      (run.sections.includes(key.split(".")[0]) ? values[i].get(key) ?? normal : "\u2013");
    const rows = [...defaults].map(([key, normal]) => [key, ...runs.map((run, i) => value(run, i, key, normal))])
      .filter(([, ...cells]) => new Set(cells).size > 1);
    $("#differences").hidden = !rows.length;
    fill("#differences", ["key", ...runs.map((run) => run.name)], rows);
  }

  function showMoves() {
    const known = runs.map((run) => new Map(run.population.clients.map((one) => [one.name, one])));
    const names = [...new Set(known.flatMap((clients) => [...clients.keys()]))];
    const cell = (one) => {
      const place = make("td");
      if (!one) { place.textContent = "not there"; return place; }
      if (one.cluster >= 0) {
        const dot = make("span", undefined, "dot");
        dot.style.background = clusterColour(one.cluster);
        place.append(dot, `cluster ${one.cluster}`);
      }
      if (one.weights) place.append(` (${Math.max(...one.weights).toFixed(2)})`);
      if (one.accuracy !== null) place.append(` \u00b7 ${percent(one.accuracy)}`);
      return place;
    };
    $("#moves").hidden = !names.length;
    fill("#moves", ["client", ...runs.map((run) => run.name)],
      names.map((name) => [name, ...known.map((clients) => cell(clients.get(name)))]));
  }

  $("#name").textContent = runs.map((run) => run.name).join(" and ");
  const articles = runs.map(column);
  $("#runs").append(...articles);
  showSettings();
  showMoves();
  function drawAll() {
    articles.forEach((article, i) => draw(article, runs[i]));
    root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1);
  }
  let waiting = 0;
  const again = () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); };
  addEventListener("resize", again);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  drawAll();
})();
