// What every component is written with: `html` for its elements, hooks for its own state, signals for shared state.
import { Component, Fragment, h, render } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { batch, computed, effect, signal, untracked, useComputed, useSignal, useSignalEffect } from "@preact/signals";
import htm from "htm";

export const html = htm.bind(h);
export { Component, Fragment, batch, computed, effect, h, render, signal, untracked };
export { useCallback, useComputed, useEffect, useLayoutEffect, useMemo, useRef, useSignal, useSignalEffect, useState };
