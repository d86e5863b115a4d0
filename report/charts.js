// Draws each figure from the specification inside it: learning curves, with a choice of axis and smoothing,
// and the charts of studies.html.j2. Redraws a figure when the width or the color scheme changes.
(() => {
  "use strict";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const FIGURES = "figure.curves, figure.drawn";
  const rounded = (value, digits) => value.toLocaleString("en", { maximumSignificantDigits: digits });

  function chartConfig() {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const text = { labelColor: color("--muted"), titleColor: color("--muted") };
    return {
      background: null, font: style.fontFamily, view: { stroke: null }, text: { color: color("--ink") },
      axis: {
        ...text, labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal", ticks: false,
        domain: false, gridColor: color("--line"), labelPadding: 6,
      },
      axisX: { grid: false, domain: true, domainColor: color("--line-strong") },
      axisY: {  // its title is the heading of the panel, at the same height in every panel
        maxExtent: 44, titleColor: color("--ink"), titleFontSize: 13, titleFontWeight: 600,
        titleAngle: 0, titleAlign: "left", titleBaseline: "bottom", titleX: 0, titleY: -16,
      },
    };
  }

  function fit(spec, width) {
    if (!spec.concat) return { ...spec, width: width - 16, padding: 4 };
    const most = width >= 780 ? 3 : width >= 520 ? 2 : 1;
    const columns = Math.min(spec.concat.length, spec.columns, most);
    const axis = 54;  // width of the labels left of each panel
    const panel = Math.floor((width - 16) / columns) - axis;
    // A single panel as wide as the page would be hard to read.
    const sized = { width: Math.min(panel, 480) };
    return {
      ...spec, columns, bounds: "flush", spacing: { row: 84, column: axis }, padding: 4,
      concat: spec.concat.map((one) => ({ ...one, ...sized })),
    };
  }

  // --- learning curves: horizontal axis and smoothing ---

  // Exponential moving average over steps, with bias correction (Kingma and Ba 2015, arXiv:1412.6980,
  // section 3). As in Weights & Biases, the decay depends on the distance between points: `weight` is the
  // decay over 1/300 of the curve, so that few validations are not smoothed away. For 300 evenly spaced
  // points the result equals TensorBoard's.
  function smooth({ step, value }, weight) {
    const unit = (step[step.length - 1] - step[0]) / 300 || 1;
    let sum = 0, share = 0;
    return value.map((recorded, index) => {
      const kept = index ? weight ** ((step[index] - step[index - 1]) / unit) : 0;
      sum = kept * sum + (1 - kept) * recorded;
      share = kept * share + (1 - kept);
      return sum / share;
    });
  }

  function acrossBy(layer, field, title) {
    return { ...layer, encoding: { ...layer.encoding, x: { ...layer.encoding.x, field, title } } };
  }

  function withRecorded(panel) {  // the recorded line stays visible behind the smoothed line
    const layers = panel.layer.map((layer) => ({
      ...layer,
      transform: layer.transform.map((one) =>
        one.flatten ? { flatten: [...one.flatten, "recorded"] } : one),
    }));
    const line = layers[0];
    const { condition } = line.encoding.opacity;
    const faint = {
      ...line, name: `recorded_${line.name}`, mark: { type: "line", strokeWidth: 1 },
      encoding: {
        ...line.encoding, y: { ...line.encoding.y, field: "recorded" },
        opacity: { condition: { ...condition, value: 0.22 }, value: 0 },
      },
    };
    return { ...panel, layer: [faint, ...layers] };
  }

  function withPanels(spec, panels) {  // Vega rejects a parameter of a missing view
    const concat = spec.concat.filter((_, index) => panels.has(index));
    const names = new Set(concat.flatMap((panel) => panel.layer.map((layer) => layer.name)));
    const params = spec.params.filter((one) => !one.views || one.views.every((view) => names.has(view)));
    return { ...spec, concat, params };
  }

  function chosen(whole, { axis, weight, panels }) {
    const spec = withPanels(whole, panels);
    const title = spec.usermeta.axes[axis];
    const across = (panel) => ({
      ...panel, layer: panel.layer.map((layer) => acrossBy(layer, axis, title)),
    });
    const concat = spec.concat.map(across);
    if (!weight) return { ...spec, concat };
    const rows = Object.entries(spec.datasets).map(([name, set]) => [
      name, set.map((row) => ({ ...row, recorded: row.value, value: smooth(row, weight) })),
    ]);
    return { ...spec, datasets: Object.fromEntries(rows), concat: concat.map(withRecorded) };
  }

  function choiceOf(figure, panels) {
    const boxes = all(".metrics input", figure);
    const isShown = (one, index) => (boxes.length ? boxes[index].checked : one.shown);
    return {
      panels: new Set((panels ?? []).flatMap((one, index) => (isShown(one, index) ? [index] : []))),
      axis: figure.querySelector(".controls select")?.value ?? "step",
      weight: Number(figure.querySelector(".controls input")?.value ?? 0),
    };
  }

  function addMetrics(figure, panels) {  // one panel per logged metric; only the usual metrics are shown at first
    if (panels.every((one) => one.shown)) return;
    const choice = document.createElement("details");
    choice.className = "columns-choice metrics";
    choice.innerHTML = `<summary>Metrics (${panels.filter((one) => !one.shown).length} more)</summary>`
      + '<div role="group" aria-label="Metrics to show"></div>';
    panels.forEach(({ title, shown }) => {
      const label = document.createElement("label"), box = document.createElement("input");
      Object.assign(box, { type: "checkbox", checked: shown });
      box.addEventListener("change", () => {
        if (!all("input:checked", choice).length) box.checked = true;  // at least one metric stays
        draw(figure);
      });
      label.append(box, title);
      choice.lastElementChild.append(label);
    });
    figure.querySelector(".controls").append(choice);
  }

  function addControls(figure, axes, panels) {
    const bar = document.createElement("div");
    bar.className = "controls";
    bar.innerHTML = '<label>Horizontal axis <select></select></label><label>Smoothing'
      + ' <input type="range" min="0" max="0.99" step="0.01" value="0"><output>off</output></label>';
    const [select, range] = [bar.querySelector("select"), bar.querySelector("input")];
    select.append(...Object.entries(axes).map(([field, title]) => new Option(title, field)));
    range.addEventListener("input", () => {
      bar.querySelector("output").textContent = Number(range.value) ? range.value : "off";
    });
    [select, range].forEach((field) => field.addEventListener("change", () => draw(figure)));
    figure.querySelector(".chart").before(bar);
    addMetrics(figure, panels);
  }

  // --- tooltips ---
  function tipOf(axes, { axis }) {
    const place = (point) => (axis === "time"
      ? `${rounded(point.time, 3)} ${axes.time.split(", ")[1]}` : `${axis} ${rounded(point[axis], 6)}`);
    return (point, sanitize) => {
      const lines = point.said ?? [
        `${rounded(point.value, 4)} at ${place(point)}`,
        ...("recorded" in point ? [`recorded ${rounded(point.recorded, 4)}`] : []),
      ];
      return [`<b>${sanitize(point.run)}</b>`, ...lines.map((line) => sanitize(line))].join("<br>");
    };
  }

  // --- drawing: one figure after the other, so that the page stays responsive ---
  let turn = Promise.resolve();

  function draw(figure) {
    figure.isQueued = true;
    turn = turn
      .then(() => new Promise((resolve) => { setTimeout(resolve); }))
      .then(() => drawNow(figure))
      .catch((error) => console.error(`${figure.dataset.title} cannot be drawn`, error));
    return turn;
  }

  async function drawNow(figure) {
    figure.isQueued = false;
    const host = figure.querySelector(".chart");
    const width = host.clientWidth;
    if (!width) return;  // hidden
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const axes = spec.usermeta?.axes;
    const panels = spec.usermeta?.panels;
    if (axes && !figure.querySelector(".controls")) addControls(figure, axes, panels);
    (spec.params ?? []).filter((one) => one.bind && figure.view)
      .forEach((one) => { one.value = figure.view.signal(one.name); });  // keep the reader's choice
    const choice = choiceOf(figure, panels);
    const shown = fit(axes ? chosen(spec, choice) : spec, width);
    // Not the host itself: Vega-Embed permanently narrows the element that it draws in.
    const frame = document.createElement("div");
    const result = await vegaEmbed(frame, shown, {
      actions: false, ast: true, renderer: figure.dataset.renderer, config: chartConfig(),
      tooltip: { formatTooltip: tipOf(axes, choice) },
    });
    host.replaceChildren(frame);
    figure.view?.finalize();
    figure.view = result.view;
    figure.drawnWidth = width;
    await showPicked(figure);
  }

  // --- picking runs, saving ---
  function showPicked(figure) {
    if (!figure.matches(".curves")) return null;
    const picked = all("[aria-pressed=true]", figure).map((button) => button.dataset.label);
    return figure.view.signal("picked", picked).runAsync();
  }

  function pick(figure, button) {
    button.setAttribute("aria-pressed", button.getAttribute("aria-pressed") !== "true");
    if (figure.view) showPicked(figure);
  }

  async function save(figure) {
    const link = document.createElement("a");
    link.href = await figure.view.toImageURL("svg");
    link.download = `${figure.dataset.title}${figure.matches(".curves") ? "-learning-curves" : ""}.svg`;
    link.click();
  }

  function addListeners(figure) {
    figure.isWired = true;
    all("button.key", figure).forEach((button) =>
      button.addEventListener("click", () => pick(figure, button)));
    figure.querySelector("button.save")?.addEventListener("click", () => save(figure));
  }

  // Drawing a thousand runs blocks the page for seconds, so a long figure waits until it is near the view.
  const MANY = 200;  // rows of data, one per run
  const isLong = (figure) => Object.values(
    JSON.parse(figure.querySelector("script").textContent).datasets ?? {},
  ).some((rows) => rows.length > MANY);
  const near = new IntersectionObserver((entries) => entries
    .filter((entry) => entry.isIntersecting).forEach(({ target }) => drawWaiting(target)),
  { rootMargin: "400px" });
  const waiting = new Set();

  function drawWaiting(figure) {
    near.unobserve(figure);
    waiting.delete(figure);
    draw(figure);
  }

  function wait(figure) {
    waiting.add(figure);
    near.observe(figure);
  }

  function drawWithin(root) {
    if (typeof vegaEmbed !== "function") return;  // a page without any chart
    // a closed element has a width, too: browsers lay it out on request
    const open = all(FIGURES, root).filter((figure) => !figure.closest("details:not([open])"));
    open.filter((figure) => !figure.isWired).forEach(addListeners);
    open.filter((figure) => !figure.view && !figure.isQueued)
      .forEach((figure) => (isLong(figure) ? wait(figure) : draw(figure)));
  }

  function startCharts() {
    let pending;
    const drawn = () => all(FIGURES).filter((figure) => figure.view);
    addEventListener("resize", () => {
      clearTimeout(pending);
      pending = setTimeout(() => drawn()
        .filter((figure) => figure.querySelector(".chart").clientWidth !== figure.drawnWidth)
        .forEach(draw), 150);
    });
    addEventListener("beforeprint", () => waiting.forEach(drawWaiting));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn().forEach(draw));
    drawWithin(document);
  }

  window.shardlineCharts = { startCharts, draw: drawWithin };
})();
