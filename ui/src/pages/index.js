// The pages, in the order of the navigation. A page is a file here and a row: its path, its name and icon, its view.
import { Chat } from "./chat/chat.js";
import { Context } from "./context.js";
import { Messages } from "./messages.js";
import { Sessions } from "./sessions.js";
import { Transcript } from "./transcript.js";

export const PAGES = [
  { path: "chat", name: "Chat", icon: "chat", view: Chat },
  { path: "sessions", name: "Sessions", icon: "sessions", view: Sessions },
  { path: "transcript", name: "Transcript", icon: "transcript", view: Transcript },
  { path: "context", name: "Context", icon: "context", view: Context },
  { path: "messages", name: "Messages", icon: "messages", view: Messages },
];
