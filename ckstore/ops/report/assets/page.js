"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const all = data.checkpoints;
  if (!all.length) return;
  const HEIGHT = 260;
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  const size = (bytes) => {
    let power = 0;
    while (Math.abs(bytes) >= 1023.95 && power < UNITS.length - 1) { bytes /= 1024; power += 1; }
    return `${bytes.toFixed(power && bytes < 100 ? 1 : 0)} ${UNITS[power]}`;
  };
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Only eight hues are easy to distinguish, so further runs reuse them with dashed lines.
  const line = (index) => ({ stroke: color(`--c${index % 8}`), dash: index < 8 ? [] : [6, 4], width: 2 });
  const axis = (more) => ({ stroke: color("--soft"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") }, ...more });
  // Make the axis as wide as its longest number, so that its label does not overlap the numbers.
  const room = (_, values) => 24 + 7 * Math.max(3, ...(values ?? []).map((text) => (text ?? "").length));
  const values = (more) => axis({ size: room, ...more });
  const powers = (base, digits) => [...Array(16).keys()].flatMap((power) => digits.map((digit) => digit * base ** power));
  const bytes = { incrs: powers(16, [1, 2, 4, 8]), values: (_, splits) => splits.map((value) => (value === null ? "" : size(value))) };
  const whole = { incrs: powers(10, [1, 2, 5]) };
  // Times are in UTC, as everywhere in ckstore. The date is below the first tick of each day.
  const stamp = (seconds) => new Date(seconds * 1000).toISOString().replace("T", " ");
  const clock = (_, splits, __, ___, step) => splits.map((at, index) => {
    const day = stamp(at).slice(0, 10);
    if (step >= 86400) return day;
    const isNew = !index || stamp(splits[index - 1]).slice(0, 10) !== day;
    return stamp(at).slice(11, step >= 60 ? 16 : step >= 1 ? 19 : 22) + (isNew ? `\n${day}` : "");
  });
  const timed = () => axis({ space: 90, values: clock });
  const when = { label: "time (UTC)", value: (_, at) => (at === null || at === undefined ? "-" : stamp(at).slice(0, 19)) };
  const numeric = (_, value) => (value === null || value === undefined ? "-" : String(value));
  const sized = (_, value) => (value === null || value === undefined ? "-" : size(value));
  const plots = new Map();

  const draw = (id, options, table) => {
    const place = document.getElementById(id);
    plots.get(id)?.destroy();
    // Draw points, so that a single value without a line is visible. Drawing thousands of points would take a second.
    const points = { show: table[0].length <= 600, size: 4 };
    const series = options.series.map((one, index) => (index ? { spanGaps: true, points, ...one } : one));
    plots.set(id, new uPlot({
      width: Math.max(place.clientWidth, 240), height: HEIGHT, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
      legend: { markers: { dash: (plot, index) => (plot.series[index].dash?.length ? "dashed" : "solid") } }, ...options, series,
    }, table, place));
  };
  const byRun = (of, x, y) => {
    // All runs share one list of x values. A run without a value at an x value has null there.
    const places = [...new Set(of.map(x))].sort((a, b) => a - b);
    const at = new Map(places.map((place, index) => [place, index]));
    const runs = data.runs.filter((run) => of.some((one) => one.run === run));
    const columns = new Map(runs.map((run) => [run, new Array(places.length).fill(null)]));
    for (const one of of) columns.get(one.run)[at.get(x(one))] = y(one);
    return { runs, table: [places, ...columns.values()] };
  };
  // Draw a dotted line from the parent in another run to a fork, the names of tags, and a mark at damaged checkpoints.
  const marks = (plot) => {
    const { ctx } = plot;
    const at = (one) => [plot.valToPos(one.time, "x", true), plot.valToPos(one.step, "y", true)];
    const texts = [];
    ctx.save();
    ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
    for (const one of all) {
      const from = one.parent === null ? null : all[one.parent];
      if (!(from && from.run !== one.run) && !one.tags.length && !one.damaged) continue;
      const [x, y] = at(one);
      ctx.beginPath();
      ctx.strokeStyle = color(one.damaged ? "--bad" : "--soft");
      if (from && from.run !== one.run) { ctx.setLineDash([2, 4]); ctx.moveTo(...at(from)); ctx.lineTo(x, y); ctx.stroke(); ctx.setLineDash([]); }
      ctx.fillStyle = color(one.damaged ? "--bad" : "--ink");
      ctx.textAlign = x > plot.bbox.left + plot.bbox.width / 2 ? "right" : "left";
      const text = [...one.tags, ...(one.damaged ? ["\u2715 damaged"] : [])].join(", ");
      const wide = ctx.measureText(text).width;
      // If texts overlap, draw only the first one and those of damaged checkpoints. The table below has all tags.
      if (!one.damaged && texts.some(([left, top]) => Math.abs(left - x) < wide && Math.abs(top - y) < 14 * devicePixelRatio)) continue;
      texts.push([x, y]);
      ctx.fillText(text, x, y - 8 * devicePixelRatio);
    }
    ctx.restore();
  };
  const steps = () => {
    const { runs, table } = byRun(all, (one) => one.time, (one) => one.step);
    const series = runs.map((run) => ({ label: run, value: numeric, ...line(data.runs.indexOf(run)) }));
    draw("steps", { hooks: { draw: [marks] }, series: [when, ...series], axes: [timed(), values({ label: "step" })] }, table);
  };
  const choose = document.getElementById("choose");
  const metric = () => {
    const name = choose.value;
    const of = all.filter((one) => name in one.metrics);
    const { runs, table } = byRun(of, (one) => one.step, (one) => one.metrics[name]);
    const series = runs.map((run) => ({ label: run, value: numeric, ...line(data.runs.indexOf(run)) }));
    const options = { scales: { x: { time: false } }, series: [{ label: "step" }, ...series], axes: [axis({ label: "step", ...whole }), values({ label: name })] };
    draw("metric", options, table);
  };
  const written = () => {
    const order = all.map((_, index) => index + 1);
    const series = [
      { label: "save" },
      { label: "new", value: sized, ...line(1) },
      { label: "reused", value: sized, ...line(0) },
    ];
    draw("bytes", { scales: { x: { time: false } }, series, axes: [axis({ label: "save, in order", ...whole }), values(bytes)] },
      [order, all.map((one) => one.new), all.map((one) => one.reused)]);
  };
  const growth = () => {
    let added = 0;
    let apart = 0;
    const ordered = [...all].sort((one, other) => one.time - other.time);
    const table = [[], [], []];
    for (const one of ordered) {
      added += one.new;
      apart += one.logical;
      table[0].push(one.time); table[1].push(added); table[2].push(apart);
    }
    const series = [when, { label: "new bytes of existing checkpoints", value: sized, ...line(2) },
      { label: "without sharing", value: sized, ...line(3) }];
    draw("growth", { series, axes: [timed(), values(bytes)] }, table);
  };
  const durations = () => {
    const { runs, table } = byRun(data.durations, (one) => one.time, (one) => one.seconds);
    const series = runs.map((run) => ({ label: run, value: numeric, ...line(data.runs.indexOf(run)) }));
    draw("durations", { series: [when, ...series], axes: [timed(), values({ label: "seconds" })] }, table);
  };
  const names = [...new Set(all.flatMap((one) => Object.keys(one.metrics)))].sort();
  for (const name of names) choose.add(new Option(name, name));
  const charts = [steps, written, growth];
  if (data.durations.length) charts.push(durations);
  if (names.length) { charts.push(metric); choose.addEventListener("change", metric); }
  else document.getElementById("metric").closest("figure").remove();
  const redraw = () => charts.forEach((chart) => chart());
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 100); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // On paper, the colors are light and all folded parts are open.
  const folded = [...document.querySelectorAll("details:not([open])")];
  const print = (on) => {
    document.documentElement.classList.toggle("printing", on);
    for (const one of folded) one.open = on;
    redraw();
  };
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  redraw();
})();
