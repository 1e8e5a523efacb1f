// Stacked bars over days, with the figures of the day under the pointer below them.
import uPlot from "uplot";
import { html, useEffect, useRef } from "../core/dom.js";
import { settings } from "../core/settings.js";
import { t } from "../core/words.js";

const HUES = ["#b5482f", "#3f86b5", "#7c9a3e", "#9a5aa8", "#d08a3c", "#5a63b8", "#8c8c8c"];
const HEIGHT = 220;
const STEPS = [1, 2, 5, 7, 10, 14, 30];

// `series` is [name, one value for each date]. `said` writes a value.
export function Chart({ dates, series, said }) {
  const place = useRef(null);
  const { theme } = settings.value;
  useEffect(() => {
    const node = place.current; // The reference is empty once the page is left, and the observer may still speak then.
    if (!node) return undefined;
    const plot = new uPlot(options(dates, series, said, node), stacked(dates, series), node);
    const watch = new ResizeObserver(() => plot.setSize({ width: node.clientWidth, height: HEIGHT }));
    watch.observe(node);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const repaint = () => plot.redraw(false, true);
    dark.addEventListener("change", repaint);
    return () => {
      dark.removeEventListener("change", repaint);
      watch.disconnect();
      plot.destroy();
    };
  }, [dates.join(), JSON.stringify(series), said(1), theme]);
  return html`<div class="chart" ref=${place}></div>`;
}

// The tallest first: each bar covers the lower part of the one before it.
function stacked(dates, series) {
  const sums = [];
  let below = dates.map(() => 0);
  for (const [, values] of series) sums.unshift((below = below.map((value, day) => value + values[day])));
  return [dates.map((_, day) => day), ...sums];
}

function options(dates, series, said, place) {
  const colour = (name) => () => getComputedStyle(place).getPropertyValue(name);
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  const bars = uPlot.paths.bars({ size: [0.8, 48] });
  return {
    width: place.clientWidth,
    height: HEIGHT,
    padding: [8, 8, 0, 0],
    cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
    scales: { x: { time: false, range: [-0.6, dates.length - 0.4] }, y: { range: (_, low, high) => [0, high * 1.05 || 1] } },
    axes: [
      { ...axis, grid: { show: false }, incrs: STEPS, values: (_, days) => days.map((day) => dates[day]?.slice(5) ?? "") },
      { ...axis, size: 62, values: (_, values) => values.map(said) },
    ],
    series: [
      { label: t("Day"), value: (_, day) => dates[day] ?? "–" },
      ...series
        .map(([label, values], index) => {
          const hue = HUES[index % HUES.length];
          return { label, fill: hue, stroke: hue, width: 0, paths: bars, points: { show: false }, value: (_, __, ___, day) => (day === null ? "–" : said(values[day])) };
        })
        .reverse(),
    ],
  };
}
