// Where a message is written: text, files by button, paste or drop, the menu of commands, the model and how it thinks.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../../core/dom.js";
import { count, short } from "../../core/format.js";
import { call } from "../../core/gateway.js";
import { address } from "../../core/router.js";
import { change, draft, settings } from "../../core/settings.js";
import { language, t } from "../../core/words.js";
import { Icon, told, useCall } from "../../parts/basics.js";
import { Popover } from "../../parts/menu.js";
import { readFiles } from "./attachments.js";

const THINKING = ["off", "minimal", "low", "medium", "high", "xhigh"];

function usePalette(text, commands) {
  const [chosen, setChosen] = useState(0);
  const [dismissed, setDismissed] = useState("");
  const typed = /^\/(\w*)$/.exec(text);
  const found = typed && text !== dismissed ? commands.filter((one) => one.name.startsWith(typed[1].toLowerCase())) : [];
  const exact = found.length === 1 && `/${found[0].name}` === text;
  const index = Math.min(chosen, Math.max(0, found.length - 1));
  return { found: exact ? [] : found, index, setChosen, dismiss: () => setDismissed(text) };
}

function useSetting(conversation) {
  return async (fields) => {
    try {
      await call("sessions.patch", { key: conversation.sessionKey, ...fields });
      await conversation.refresh();
    } catch (error) {
      told(error);
    }
  };
}

function ModelPicker({ conversation }) {
  const { model, modelOverride } = conversation.facts.value;
  const name = modelOverride || model || t("Default model");
  return html`<${Popover} label=${t("Model")} title=${`${t("Model")}: ${name}`} className="pill" panelClass="menu" trigger=${html`<${Icon} name="sparkles" /><span>${name}</span>`}>
    ${(close) => html`<${Models} conversation=${conversation} close=${close} />`}
  <//>`;
}

// The list is long, so it is asked for when it is opened.
function Models({ conversation, close }) {
  const [typed, setTyped] = useState("");
  const patch = useSetting(conversation);
  const { data } = useCall("models.list");
  const { modelOverride, providerOverride } = conversation.facts.value;
  const usable = (data?.models || []).filter((one) => one.available);
  const current = modelOverride ? `${providerOverride}/${modelOverride}` : "";
  const words = typed.trim().toLowerCase();
  const shown = usable.filter((one) => `${one.provider}/${one.id} ${one.name || ""}`.toLowerCase().includes(words)).slice(0, 60);
  return html`
      ${usable.length > 6 && html`<input type="search" aria-label=${t("Search models")} placeholder=${t("Search models")} value=${typed} autofocus onInput=${(event) => setTyped(event.target.value)} />`}
      ${!words && html`<button class="row-button" aria-pressed=${!current} onClick=${() => (close(), patch({ model: null }))}><span>${t("Default")}</span>${!current && html`<${Icon} name="check" />`}</button>`}
      ${shown.map((one) => {
        const ref = `${one.provider}/${one.id}`;
        return html`<button key=${ref} class="row-button" title=${ref} aria-pressed=${ref === current} onClick=${() => (close(), patch({ model: ref }))}><span>${one.name || one.id}</span>${ref === current ? html`<${Icon} name="check" />` : html`<small>${one.provider}</small>`}</button>`;
      })}
      ${data && !usable.length && html`<p class="side-empty">${t("No model can be called yet.")}</p>`}
      ${!data && [80, 60, 70].map((width) => html`<i class="skeleton in-list" style=${{ width: `${width}%` }}></i>`)}`;
}

function ThinkingPicker({ conversation }) {
  const patch = useSetting(conversation);
  const { thinkingLevel, reasoningLevel } = conversation.facts.value;
  const shows = Boolean(reasoningLevel && reasoningLevel !== "off");
  return html`<${Popover} label=${t("Thinking")} title=${t("How hard the model thinks before it answers.")} className="pill" panelClass="menu" trigger=${html`<${Icon} name="brain" /><span>${thinkingLevel ? t(thinkingLevel) : t("Thinking")}</span>`}>
    ${(close) => html`<h3>${t("Thinking")}</h3>
      ${THINKING.map((one) => html`<button key=${one} class="row-button" aria-pressed=${one === (thinkingLevel || "off")} onClick=${() => (close(), patch({ thinkingLevel: one }))}><span>${t(one)}</span>${one === (thinkingLevel || "off") && html`<${Icon} name="check" />`}</button>`)}
      <h3>${t("Reasoning")}</h3>
      <button class="row-button" aria-pressed=${shows} onClick=${() => (close(), patch({ reasoningLevel: shows ? "off" : "stream" }))}><span>${t("Send the reasoning to this page")}</span>${shows && html`<${Icon} name="check" />`}</button>
      <label class="row-button"><input type="checkbox" checked=${settings.value.showThinking} onChange=${(event) => change({ showThinking: event.target.checked })} /><span>${t("Show reasoning")}</span></label>`}
  <//>`;
}

function Gauge({ conversation }) {
  const { totalTokens, contextTokens } = conversation.facts.value;
  if (!contextTokens || !totalTokens) return null;
  const share = Math.min(1, totalTokens / contextTokens);
  const round = 2 * Math.PI * 8;
  return html`<${Popover} label=${t("Context: {n} % used", { n: Math.round(share * 100) })} title=${t("Context: {n} % used", { n: Math.round(share * 100) })}
      trigger=${html`<svg class=${share > 0.8 ? "gauge full" : "gauge"} viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="8" /><circle cx="10" cy="10" r="8" stroke-dasharray="${round * share} ${round}" /></svg>`}>
    ${(close) => html`<h3>${t("Context")}</h3><p class="side-empty">${t("{n} of {m} tokens are in the model's view.", { n: count(totalTokens), m: short(contextTokens) })}</p>
      <a class="row-button" href=${address("context", { session: conversation.sessionKey })} onClick=${() => close(false)}><${Icon} name="context" /><span>${t("What did the model see?")}</span></a>
      <button class="row-button" onClick=${() => (close(), conversation.send("/compact"))}><${Icon} name="archive" /><span>${t("Compact")}</span></button>`}
  <//>`;
}

// Speech becomes text where the browser can do that.
function Dictation({ text, setText }) {
  const [hears, setHears] = useState(null);
  const Recogniser = window.SpeechRecognition || window.webkitSpeechRecognition;
  useEffect(() => () => hears?.abort(), [hears]);
  if (!Recogniser) return null;
  const toggle = () => {
    if (hears) return void hears.stop();
    const one = new Recogniser();
    one.lang = language.value;
    one.interimResults = true;
    one.continuous = true;
    const before = text && !/\s$/.test(text) ? `${text} ` : text;
    one.onresult = (event) => setText(before + [...event.results].map((result) => result[0].transcript).join(""));
    one.onend = () => setHears(null);
    one.onerror = (event) => event.error !== "aborted" && event.error !== "no-speech" && told(new Error(t("Dictation does not work here: {why}", { why: event.error })));
    one.start();
    setHears(one);
    return undefined;
  };
  return html`<button type="button" class="icon-button" aria-label=${t("Dictate")} title=${t("Dictate")} aria-pressed=${Boolean(hears)} onClick=${toggle}><${Icon} name="mic" /></button>`;
}

export function Composer({ conversation, text, setText, inputRef, busy }) {
  const { sessionKey } = conversation;
  const [files, setFiles] = useState([]);
  const [dragging, setDragging] = useState(false);
  const chooser = useRef(null);
  const { data } = useCall("chat.commands");
  const palette = usePalette(text, data?.commands || []);
  const editing = conversation.editing.value;

  useLayoutEffect(() => setFiles([]), [sessionKey]);
  useEffect(() => {
    if (!conversation.editing.value) draft(sessionKey, text);
  }, [text]);
  useLayoutEffect(() => {
    const input = inputRef.current;
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight + 2, 260)}px`;
  }, [text]);

  const add = async (chosen) => {
    const made = await readFiles([...chosen], files);
    setFiles((old) => [...old, ...made]);
    inputRef.current?.focus();
  };
  const cancelEditing = () => {
    conversation.editing.value = null;
    setText(draft(sessionKey));
  };
  const send = () => {
    if (!text.trim() && !files.length) return;
    if (editing) {
      conversation.editing.value = null;
      conversation.sayAgain(editing, text, files).catch((error) => {
        told(error);
        conversation.editing.value = editing;
        setText(text);
      });
      setText(draft(sessionKey));
    } else {
      conversation.send(text, files);
      setText("");
    }
    setFiles([]);
    inputRef.current?.focus();
  };
  const complete = (command) => {
    setText(`/${command.name}${command.usage ? " " : ""}`);
    inputRef.current?.focus();
  };
  const key = (event) => {
    if (event.isComposing) return;
    const found = palette.found.length;
    if (found && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      palette.setChosen((palette.index + (event.key === "ArrowDown" ? 1 : found - 1)) % found);
    } else if (found && (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey))) {
      event.preventDefault();
      complete(palette.found[palette.index]);
    } else if (event.key === "Escape" && found) {
      event.preventDefault();
      palette.dismiss();
    } else if (event.key === "Escape" && editing) {
      event.preventDefault();
      cancelEditing();
    } else if (event.key === "Escape" && busy) {
      event.preventDefault();
      conversation.stop();
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    }
  };
  const paste = (event) => {
    const pasted = [...(event.clipboardData?.files || [])];
    if (pasted.length) {
      event.preventDefault();
      add(pasted);
    }
  };
  const drop = (event) => {
    event.preventDefault();
    setDragging(false);
    add(event.dataTransfer.files);
  };
  return html`<form class=${dragging ? "composer dragging" : "composer"} onSubmit=${(event) => (event.preventDefault(), send())}
      onDragOver=${(event) => (event.preventDefault(), setDragging(true))} onDragLeave=${() => setDragging(false)} onDrop=${drop}>
    ${palette.found.length > 0 && html`<ul class="palette" role="listbox" id="palette" aria-label=${t("Commands")}>
      ${palette.found.map((one, index) => html`<li key=${one.name} id="command-${one.name}" role="option" aria-selected=${index === palette.index}
        onMouseDown=${(event) => (event.preventDefault(), complete(one))}><code>/${one.name}</code> <i>${one.usage}</i><span>${t(one.help)}</span></li>`)}
    </ul>`}
    <div class="compose-box">
      ${editing && html`<p class="editing"><${Icon} name="edit" /><span>${t("You edit an earlier message. What followed stays as another version.")}</span><button type="button" class="quiet" onClick=${cancelEditing}>${t("Cancel")}</button></p>`}
      ${files.length > 0 && html`<ul class="thumbs">${files.map((one, index) => html`<li key=${index} class=${one.url ? "" : "other"}>
        ${one.url ? html`<img src=${one.url} alt=${one.name} />` : html`<${Icon} name="document" /><span title=${one.name}>${one.name}</span>`}
        <button type="button" class="icon-button" aria-label=${t("Remove {name}", { name: one.name })} onClick=${() => setFiles(files.filter((other) => other !== one))}><${Icon} name="close" /></button>
      </li>`)}</ul>`}
      <input type="file" ref=${chooser} multiple hidden onChange=${(event) => (add(event.target.files), (event.target.value = ""))} />
      <textarea ref=${inputRef} rows="1" aria-label=${t("Message")} placeholder=${t("Write a message, or / for commands")} value=${text} dir="auto"
        aria-controls=${palette.found.length ? "palette" : undefined}
        aria-activedescendant=${palette.found.length ? `command-${palette.found[palette.index].name}` : undefined}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${key} onPaste=${paste}></textarea>
      <div class="compose-row">
        <button type="button" class="icon-button" aria-label=${t("Attach")} title=${t("Attach")} onClick=${() => chooser.current.click()}><${Icon} name="attach" /></button>
        <${ModelPicker} conversation=${conversation} />
        <${ThinkingPicker} conversation=${conversation} />
        <span class="spacer"></span>
        <${Gauge} conversation=${conversation} />
        <${Dictation} text=${text} setText=${setText} />
        ${busy && html`<button type="button" class="stop" aria-label=${t("Stop")} title=${t("Stop")} onClick=${() => conversation.stop()}><${Icon} name="stop" /></button>`}
        <button type="submit" class="primary send" aria-label=${t("Send")} title=${t("Send")} disabled=${!text.trim() && !files.length}><${Icon} name="send" /></button>
      </div>
    </div>
  </form>`;
}

