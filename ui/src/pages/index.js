// The pages, in the order of the navigation. A page is a file here and a row: its path, its name and icon, its view.
import { Chat } from "./chat/chat.js";

export const PAGES = [
  { path: "chat", name: "Chat", icon: "chat", view: Chat },
];
