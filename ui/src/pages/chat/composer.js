// Where a message is written: text, pictures by button, paste or drop, and the palette of commands.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../../core/dom.js";
import { draft } from "../../core/settings.js";
import { t } from "../../core/words.js";
import { Icon, useCall } from "../../parts/basics.js";
import { readPictures } from "./attachments.js";

function usePalette(text, commands) {
  const [chosen, setChosen] = useState(0);
  const [dismissed, setDismissed] = useState("");
  const typed = /^\/(\w*)$/.exec(text);
  const found = typed && text !== dismissed ? commands.filter((one) => one.name.startsWith(typed[1].toLowerCase())) : [];
  const exact = found.length === 1 && `/${found[0].name}` === text;
  const index = Math.min(chosen, Math.max(0, found.length - 1));
  return { found: exact ? [] : found, index, setChosen, dismiss: () => setDismissed(text) };
}

export function Composer({ conversation, text, setText, inputRef, busy }) {
  const { sessionKey } = conversation;
  const [pictures, setPictures] = useState([]);
  const [dragging, setDragging] = useState(false);
  const chooser = useRef(null);
  const { data } = useCall("chat.commands");
  const palette = usePalette(text, data?.commands || []);

  useEffect(() => setPictures([]), [sessionKey]);
  useEffect(() => {
    draft(sessionKey, text);
  }, [text]);
  useLayoutEffect(() => {
    const input = inputRef.current;
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight + 2, 260)}px`;
  }, [text]);

  const add = async (files) => {
    const made = await readPictures([...files], pictures.length);
    setPictures((old) => [...old, ...made]);
    inputRef.current?.focus();
  };
  const send = () => {
    if (!text.trim() && !pictures.length) return;
    conversation.send(text, pictures);
    setText("");
    setPictures([]);
    inputRef.current?.focus();
  };
  const complete = (command) => {
    setText(`/${command.name}${command.usage ? " " : ""}`);
    inputRef.current?.focus();
  };
  const key = (event) => {
    if (event.isComposing) return;
    const count = palette.found.length;
    if (count && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      event.preventDefault();
      palette.setChosen((palette.index + (event.key === "ArrowDown" ? 1 : count - 1)) % count);
    } else if (count && (event.key === "Tab" || (event.key === "Enter" && !event.shiftKey))) {
      event.preventDefault();
      complete(palette.found[palette.index]);
    } else if (event.key === "Escape" && count) {
      event.preventDefault();
      palette.dismiss();
    } else if (event.key === "Escape" && busy) {
      event.preventDefault();
      conversation.stop();
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      send();
    }
  };
  const paste = (event) => {
    const files = [...(event.clipboardData?.files || [])];
    if (files.length) {
      event.preventDefault();
      add(files);
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
    ${pictures.length > 0 && html`<ul class="thumbs">${pictures.map((one) => html`<li key=${one.url}>
      <img src=${one.url} alt=${one.name} />
      <button type="button" class="icon-button" aria-label=${t("Remove {name}", { name: one.name })} onClick=${() => setPictures(pictures.filter((other) => other !== one))}><${Icon} name="close" /></button>
    </li>`)}</ul>`}
    <div class="compose-row">
      <input type="file" ref=${chooser} accept="image/*" multiple hidden onChange=${(event) => (add(event.target.files), (event.target.value = ""))} />
      <button type="button" class="icon-button" aria-label=${t("Attach pictures")} onClick=${() => chooser.current.click()}><${Icon} name="attach" /></button>
      <textarea ref=${inputRef} rows="1" aria-label=${t("Message")} placeholder=${t("Message")} value=${text} dir="auto"
        aria-controls=${palette.found.length ? "palette" : undefined}
        aria-activedescendant=${palette.found.length ? `command-${palette.found[palette.index].name}` : undefined}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${key} onPaste=${paste}></textarea>
      ${busy && html`<button type="button" class="stop" aria-label=${t("Stop")} onClick=${() => conversation.stop()}><${Icon} name="stop" /><span>${t("Stop")}</span></button>`}
      <button type="submit" class="primary send" aria-label=${t("Send")} disabled=${!text.trim() && !pictures.length}><${Icon} name="send" /><span>${t("Send")}</span></button>
    </div>
  </form>`;
}
