// A long list of which only a stretch is in the document. It follows its end until somebody scrolls up, and keeps
// what is seen in place when rows come or go above it.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/dom.js";
import { t } from "../core/words.js";
import { Icon } from "./basics.js";

const MOST = 150;
const STEP = 50;
const NEAR_PX = 400;

export function WindowList({ rows, render, onTop, label, footer, resetKey }) {
  const box = useRef(null);
  const [end, setEnd] = useState(null); // Null: the list follows its end.
  const [away, setAway] = useState(false);
  const anchor = useRef(null);
  const following = useRef(true);
  const lastTop = useRef(0);
  const until = end === null ? rows.length : Math.min(end, rows.length);
  const from = Math.max(0, until - MOST);

  useEffect(() => {
    following.current = true;
    setEnd(null);
    setAway(false);
  }, [resetKey]);

  // The first row that can be seen keeps its place on the screen.
  const remember = () => {
    const top = box.current.getBoundingClientRect().top;
    const seen = [...box.current.querySelectorAll("[data-row]")].find((one) => one.getBoundingClientRect().bottom > top);
    anchor.current = seen ? { key: seen.dataset.row, offset: seen.getBoundingClientRect().top - top } : null;
  };

  useLayoutEffect(() => {
    const element = box.current;
    if (following.current && end === null) {
      element.scrollTop = element.scrollHeight;
    } else if (anchor.current) {
      const found = element.querySelector(`[data-row="${CSS.escape(anchor.current.key)}"]`);
      if (found) {
        const now = found.getBoundingClientRect().top - element.getBoundingClientRect().top;
        element.scrollTop += now - anchor.current.offset;
      }
    }
  });

  // Pictures and fonts arrive late, and the keyboard of a phone takes room.
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (following.current && box.current) box.current.scrollTop = box.current.scrollHeight;
    });
    observer.observe(box.current);
    if (box.current.firstElementChild) observer.observe(box.current.firstElementChild);
    return () => observer.disconnect();
  }, []);

  const scrolled = () => {
    if (!box.current) return; // The event of a list that has just been taken away.
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    const below = scrollHeight - scrollTop - clientHeight;
    // Only scrolling up ends it. What grows below does not, and may be larger than the edge.
    const wentUp = scrollTop < lastTop.current - 1;
    lastTop.current = scrollTop;
    if (following.current && wentUp && below >= 60) following.current = false;
    else if (below < 60 && until === rows.length) following.current = true;
    setAway(!following.current);
    remember();
    if (scrollTop < NEAR_PX) {
      if (from > 0) setEnd(Math.max(until - STEP, Math.min(MOST, rows.length)));
      else onTop?.();
    } else if (below < NEAR_PX && until < rows.length) {
      setEnd(until + STEP >= rows.length ? null : until + STEP);
    } else if (end === null && !following.current) {
      setEnd(rows.length); // New rows must not push away what is being read.
    } else if (following.current && end !== null && until === rows.length) {
      setEnd(null);
    }
  };

  const toEnd = () => {
    following.current = true;
    anchor.current = null;
    setEnd(null);
    setAway(false);
    box.current.scrollTop = box.current.scrollHeight;
  };

  return html`<div class="window-list">
    <div class="scroller" ref=${box} onScroll=${scrolled} role="log" aria-label=${label} aria-live="polite" tabindex="0">
      <div class="rows">
        ${rows.slice(from, until).map((row) => html`<div key=${row.key} data-row=${row.key}>${render(row)}</div>`)}
        ${footer}
      </div>
    </div>
    ${away && html`<button class="to-end" onClick=${toEnd}><${Icon} name="down" /> ${t("Newest")}</button>`}
  </div>`;
}
